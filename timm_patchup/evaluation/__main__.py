"""``python -m timm_patchup.evaluation``: the command of scripts/evaluate.py for installations without a checkout."""

from ..cli.evaluate import main

if __name__ == "__main__":
    main()
