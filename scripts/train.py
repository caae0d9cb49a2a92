"""Train a recipe on any number of processes.

    python scripts/train.py                                                 # the default, two minutes on a CPU
    python scripts/train.py --list-recipes
    python scripts/train.py --help                                          # every key of a recipe is a flag
    accelerate launch --config_file recipes/accelerate/gpu_8.yaml scripts/train.py --recipe imagenet_hard_patchup

Without a checkout, after pip install: python -m timm_patchup.training --recipe NAME
"""

from timm_patchup.cli.train import main

if __name__ == "__main__":
    main()
