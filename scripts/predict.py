"""Print the classes that a model sees in images, with their probabilities.

    python scripts/predict.py --model output/finetune_hard_patchup new_photos          # a run, an export or USER/NAME
    python scripts/predict.py --model USER/NAME a.jpg b.jpg --format csv --plot seen.png

Without a checkout, after pip install: python -m timm_patchup.cli.predict --model ...
"""

from timm_patchup.cli.predict import main

if __name__ == "__main__":
    main()
