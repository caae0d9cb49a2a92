"""Train a recipe on any number of processes.

    accelerate launch scripts/train.py                                      # the default, two minutes on a CPU
    accelerate launch scripts/train.py --recipe imagenet_hard_patchup       # an experiment of the paper
    accelerate launch scripts/train.py --list-recipes
    accelerate launch scripts/train.py --help                               # every key of a recipe is a flag

Without a checkout, after a plain pip install: accelerate launch -m timm_patchup.training --recipe NAME
"""

from timm_patchup.cli.train import main

if __name__ == "__main__":
    main()
