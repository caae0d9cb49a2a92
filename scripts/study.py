"""Run the runs that a table of the paper needs, and put what they give beside the paper's numbers.

    python scripts/study.py --list-studies
    python scripts/study.py --study fashion_mini                            # ends on two cores
    python scripts/study.py --study cifar --dry-run > commands.txt          # one line a run, for a scheduler
    python scripts/study.py --study cifar --jobs 0                          # tables of what is there so far
    python scripts/study.py --study cifar --limit 2000 -- --epochs 2        # more flags of the training command

Stopped at any point, the same command goes on. After a plain pip install: python -m timm_patchup.study --study NAME
"""

from timm_patchup.cli.study import main

if __name__ == "__main__":
    main()
