"""Train a recipe on any number of processes.

    accelerate launch scripts/train.py                                      # the embedded default, two minutes
    accelerate launch scripts/train.py --recipe imagenet_hard_patchup       # any experiment of the paper
    accelerate launch scripts/train.py --list-recipes
    accelerate launch scripts/train.py --help                               # every key of a recipe is a flag

After a plain pip install, without a checkout: accelerate launch -m timm_patchup.training --recipe NAME
"""

from timm_patchup.cli.train import main

if __name__ == "__main__":
    main()
