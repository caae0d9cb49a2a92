"""Share a finished run on the Hub, as weights that plain timm loads.

    python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --dry-run    # look first
    python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --private

After a plain pip install, without a checkout: python -m timm_patchup.hub RUN_DIR --repo USER/NAME
"""

from timm_patchup.cli.push import main

if __name__ == "__main__":
    main()
