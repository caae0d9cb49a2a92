"""Push a finished run to the Hub, as weights that plain timm loads.

    python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --dry-run    # push nothing
    python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --private

Without a checkout, after a plain pip install: python -m timm_patchup.hub RUN_DIR --repo USER/NAME
"""

from timm_patchup.cli.push import main

if __name__ == "__main__":
    main()
