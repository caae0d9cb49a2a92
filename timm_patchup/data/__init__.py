"""Data: where labelled images come from, how they are split, transformed and batched, and the embedded dataset.

Imports ``recipe``, ``core``, ``system`` and ``errors``.
"""
