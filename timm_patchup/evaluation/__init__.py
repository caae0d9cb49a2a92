"""The paper's evaluation: suites of measurements on trained classifiers, and a report that compares them.

Needs accelerate and datasets, which ``import timm_patchup`` does not: import this package by its name.
"""
