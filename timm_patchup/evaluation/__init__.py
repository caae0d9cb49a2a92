"""The paper's evaluation: suites of measurements on trained classifiers, and a report that compares them.

It needs accelerate and datasets, which ``import timm_patchup`` does not load: import this package by name.
"""
