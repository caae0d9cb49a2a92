"""A callback for Lightning: ``training_step`` is called with mixed batches, and checkpoints hold the draws' state.

Lightning gives callbacks no way to replace a batch, so this one wraps the module's ``training_step`` during ``fit``.
"""

from copy import copy
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from timm_patchup.core.mixer import Mixer
from timm_patchup.errors import UserError


class MixCallback(Callback):
    """Mixes the batches of ``training_step``, whose loss is ``mixer.loss(output, target)`` or any on soft targets.

    Args:
        mixer: a mixer for the LightningModule or for a model inside it.
        keys: where images and targets are in a batch: positions in a list or tuple, or keys of a dict.

    Example:
        >>> trainer = Trainer(callbacks=[MixCallback(module.mix)])
    """

    def __init__(self, mixer: Mixer, keys: tuple[Any, Any] = (0, 1)) -> None:
        self.mixer, self.keys = mixer, keys
        self._mixed: Any = None
        self._wrapped: tuple[LightningModule, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not any(module is self.mixer.model for module in pl_module.modules()):
            raise UserError("MixCallback: the mixer was made for another model: make one for a model in this module")
        step = pl_module.training_step

        @wraps(step)
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            if self._mixed is None:  # an optimizer may run the step on one batch several times: with one draw
                self._mixed = self._mix(batch)
            return step(self._mixed, *args, **kwargs)

        self._wrapped = pl_module, vars(pl_module).get("training_step")  # a compiled module has one, too
        pl_module.training_step = training_step  # type: ignore[method-assign]

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self._mixed = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        if self._wrapped is not None:
            module, own_step = self._wrapped
            del module.training_step
            if own_step is not None:
                module.training_step = own_step  # type: ignore[method-assign]
        self._mixed = self._wrapped = None

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        self.teardown()

    def state_dict(self) -> dict[str, Any]:
        return self.mixer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mixer.load_state_dict(state_dict)

    def _mix(self, batch: Any) -> Any:
        if not self.mixer.model.training:
            raise UserError("MixCallback: the mixer's model is in eval mode and would not be mixed: call model.train()")
        images, target = self.keys
        altered = list(batch) if isinstance(batch, tuple) else copy(batch)
        try:
            x, y = altered[images], altered[target]
        except (LookupError, TypeError) as error:
            kind = type(batch).__name__
            raise UserError(f"MixCallback: keys={self.keys} are not in a batch, which is a {kind}: {error}") from error
        altered[images], altered[target] = self.mixer(x, y)
        return tuple(altered) if isinstance(batch, tuple) else altered
