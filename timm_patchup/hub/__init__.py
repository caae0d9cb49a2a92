"""Weights to share: ``export`` a run as a folder that plain timm loads, ``push`` it to the Hub, ``load`` it anywhere.

``python -m timm_patchup.hub RUN_DIR --repo USER/NAME`` exports and pushes. ``evaluate`` measures a model on the Hub,
``predict`` names what it sees in images, ``fetch`` downloads the data of a benchmark. Imports ``evaluation``, ``runs``
and the layers below them.
"""

from ..errors import HubError
from ..evaluation.predict import predict
from ..runs.load import load
from .benchmarks import evaluate, fetch
from .export import export
from .push import push

__all__ = ["HubError", "evaluate", "export", "fetch", "load", "predict", "push"]
