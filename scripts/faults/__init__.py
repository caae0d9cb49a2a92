"""What ``scripts/torture.py`` does to the package: one file per kind of fault in ``parts/``, and what they share."""
