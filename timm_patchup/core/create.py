"""The two calls users know: ``PatchUp(model, mode=...)`` and ``create_mixer(name, model, ...)``. Both make a Mixer."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from .method import make_method
from .mixer import Mixer
from .one_of import make_methods
from .outside import import_methods
from .schedule import Schedule
from .settings import check_value


class PatchUp(Mixer):
    """Hard or Soft PatchUp inside a model.

    Args:
        model: of timm, torchvision, transformers or your own, before torch.compile or any distributed wrapper.
        mode: ``"hard"`` swaps the blocks of two samples, ``"soft"`` interpolates them.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.
        schedule: what changes from epoch to epoch.
        num_splits: number of augmentation splits in a batch, as for ``Mixer``.
        **settings: settings of ``HardPatchUp`` or ``SoftPatchUp`` (``methods/patchup.py``) that differ from the
            mode's defaults: prob, gamma, block_size, coverage, sites, mask, input_mask, objective; for soft also
            alpha and lam.

    Example:
        >>> mix = PatchUp(model, mode="hard")
        >>> x, target = mix(x, y)
        >>> loss = mix.loss(model(x), target)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: Literal["hard", "soft"] = "hard",
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
        schedule: Schedule | None = None,
        num_splits: int = 1,
        **settings: Any,
    ) -> None:
        method = make_method(f"{check_value('mode', mode, Literal['hard', 'soft'])}_patchup", **settings)
        shared: dict[str, Any] = {"num_classes": num_classes, "label_smoothing": label_smoothing, "seed": seed}
        super().__init__(model, method, **shared, schedule=schedule, num_splits=num_splits)


def create_mixer(
    name: str | Sequence[str],
    model: nn.Module,
    *,
    num_classes: int | None = None,
    label_smoothing: float = 0.0,
    seed: int = 0,
    schedule: Schedule | None = None,
    num_splits: int = 1,
    **settings: Any,
) -> Mixer:
    """Make a mixer for a model from the name of a method, or from several names.

    Args:
        name: one of ``list_methods()`` or ``"package.module:Name"``, which is imported; or a list of them, of which
            one is chosen per batch.
        model: of timm, torchvision, transformers or your own, before torch.compile or any distributed wrapper.
        num_classes: number of classes; None takes ``model.num_classes``.
        label_smoothing: smoothing of the targets before they are mixed, in [0, 1).
        seed: seed of the draws; each rank draws its own.
        schedule: what changes from epoch to epoch.
        num_splits: number of augmentation splits in a batch, as for ``Mixer``.
        **settings: settings that differ from the method's defaults. Of several methods, each that has a setting takes
            it; the settings of one method are a mapping under its name, and ``weights`` sets how often each acts.

    Raises:
        UserError: unknown method or setting, or a value outside of its range.

    Example:
        >>> mix = create_mixer("hard_patchup", model, gamma=0.4)
        >>> mix.detach()  # a model has one mixer at a time
        >>> mix = create_mixer(["hard_patchup", "cutmix"], model, weights=[2, 1], hard_patchup={"gamma": 0.4})
    """
    import_methods(name)
    method = make_methods(name, **settings)
    shared: dict[str, Any] = {"num_classes": num_classes, "label_smoothing": label_smoothing, "seed": seed}
    return Mixer(model, method, **shared, schedule=schedule, num_splits=num_splits)
