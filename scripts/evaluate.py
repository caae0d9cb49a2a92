"""Measure trained classifiers as the paper does, and write a report with tables and figures.

    python scripts/evaluate.py --model output/fashion_mini_hard_patchup --suite clean,affine,fgsm
    python scripts/evaluate.py --model RUN_A RUN_B --suite all --baseline RUN_A        # side by side
    python scripts/evaluate.py --model resnet50 --data imagenet --limit 1000           # any timm classifier
    accelerate launch --multi_gpu scripts/evaluate.py --model ...                      # on several GPUs

Without a checkout, after pip install: python -m timm_patchup.evaluation --model ...
"""

from timm_patchup.cli.evaluate import main

if __name__ == "__main__":
    main()
