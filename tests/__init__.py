"""Tests in folders that mirror the package; ``core`` is for the modules at its top.

``support`` holds what several folders use. A helper that one folder uses lies beside its tests, without ``test_``.
"""
