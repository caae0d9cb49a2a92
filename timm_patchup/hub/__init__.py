"""Weights to share: ``export`` a run as a folder that plain timm loads, ``push`` it to the Hub, ``load`` it anywhere.

``python -m timm_patchup.hub RUN_DIR --repo USER/NAME`` does the first two. ``evaluate`` measures a model that lies on
the Hub, ``fetch`` brings the data of a benchmark.
"""

from .benchmarks import evaluate, fetch
from .export import export
from .load import load
from .push import push
from .weights import HubError

__all__ = ["HubError", "evaluate", "export", "fetch", "load", "push"]
