"""``python -m timm_patchup.evaluation``: the same as scripts/evaluate.py, without a checkout."""

from ..cli.evaluate import main

if __name__ == "__main__":
    main()
