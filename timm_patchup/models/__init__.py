"""Nets for small images, of the paper and of OpenMixup, in timm's own registry: importing this package registers them.

Imports nothing of this package.
"""

from . import authors_wrn, resnet_cifar  # noqa: F401  they register their nets
from .preact_resnet import PreActResNet

__all__ = ["PreActResNet"]
