"""Weights to share: ``export`` a run as a folder that plain timm loads, ``push`` it to the Hub, ``load`` it anywhere.

``python -m timm_patchup.hub RUN_DIR --repo USER/NAME`` does the first two.
"""

from .export import export
from .load import HubError, load
from .push import push

__all__ = ["HubError", "export", "load", "push"]
