"""``python -m timm_patchup.study``: scripts/study.py without a checkout."""

from ..cli.study import main

if __name__ == "__main__":
    main()
