"""``python -m timm_patchup.hub``: scripts/push_to_hub.py without a checkout."""

from ..cli.push import main

if __name__ == "__main__":
    main()
