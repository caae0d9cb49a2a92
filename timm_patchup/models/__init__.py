"""The paper's nets for small images, in timm's own registry: importing this package registers them.

Imports nothing of this package.
"""

from . import authors_wrn  # noqa: F401  registers its net
from .preact_resnet import PreActResNet

__all__ = ["PreActResNet"]
