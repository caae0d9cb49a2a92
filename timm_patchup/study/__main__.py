"""``python -m timm_patchup.study``: the same as scripts/study.py, without a checkout."""

from ..cli.study import main

if __name__ == "__main__":
    main()
