"""The core: mixing inside a model, for any training loop. Needs torch and timm only.

Imports nothing of this package but ``errors``.
"""
