"""What training, evaluation and Hub share: run folders, checkpoints, weights, loading, metrics, the accelerator.

Imports ``data``, ``recipe``, ``models``, ``system`` and ``errors``, but neither training nor evaluation.
"""
