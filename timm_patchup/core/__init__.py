"""The core: mixing inside a model, for anybody's training loop. Needs torch and timm only.

Imports nothing of this package but ``errors``.
"""
