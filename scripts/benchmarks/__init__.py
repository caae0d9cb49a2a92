"""What ``scripts/benchmark.py`` runs: one file per table in ``parts/``, and what the tables share."""
