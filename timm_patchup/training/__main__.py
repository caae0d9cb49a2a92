"""``python -m timm_patchup.training``: scripts/train.py without a checkout."""

from ..cli.train import main

if __name__ == "__main__":
    main()
