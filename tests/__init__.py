"""Tests in folders that mirror the package; ``core`` is for the modules at its top.

``support`` holds what several folders use. A helper of a single folder is next to its tests, without ``test_``.
"""
