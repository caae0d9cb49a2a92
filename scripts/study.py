"""Run the runs behind a table of the paper, and put the results next to its numbers.

    python scripts/study.py --list-studies
    python scripts/study.py --study fashion_mini                            # small enough for two cores
    python scripts/study.py --study cifar --dry-run > commands.txt          # one line per run, for a scheduler
    python scripts/study.py --study cifar --jobs 0                          # tables of the finished runs
    python scripts/study.py --study cifar --limit 2000 -- --epochs 2        # with flags of the training command

If it was stopped, run the same command again. After a plain pip install: python -m timm_patchup.study --study NAME
"""

from timm_patchup.cli.study import main

if __name__ == "__main__":
    main()
