"""A mixin for ``transformers.Trainer``: it trains on the loss of mixed batches, and its checkpoints hold the draws.

The model runs without ``labels``, as its own loss takes class indices only; evaluation is the Trainer's.
"""

from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from timm_patchup.core.loss import Criterion
from timm_patchup.core.mixer import Mixer
from timm_patchup.errors import UserError


class MixTrainerMixin:
    """Mixes training batches, of ``pixel_values`` and ``labels``: put it before ``Trainer`` or a subclass of it.

    Args:
        *args: arguments of the Trainer.
        mixer: a mixer for the Trainer's model, or for a model inside it.
        criterion: l(logits, soft targets) of training batches, as for ``mixer.loss``; None for cross-entropy.
        **kwargs: arguments of the Trainer.
    """

    def __init__(self, *args: Any, mixer: Mixer, criterion: Criterion | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mixer, self.criterion = mixer, criterion
        _refuse_unmixed(self)
        self.model_accepts_loss_kwargs = False  # mixer.loss is a mean, which the Trainer divides when it accumulates
        self.add_callback(_draws_of(mixer))  # type: ignore[attr-defined]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        if not {"pixel_values", "labels"} <= inputs.keys():
            raise UserError(f"mixing needs batches of pixel_values and labels, got {', '.join(inputs)}")
        if inputs["labels"].is_floating_point() and self.criterion is None:
            raise UserError("float labels could be distributions or several labels: give criterion=, on soft targets")
        mixed, target = self.mixer(inputs["pixel_values"], inputs["labels"])

        def run(**batch: Any) -> Any:
            outputs = model(**batch)
            if not isinstance(outputs, dict):
                return self.mixer.loss(outputs[0], target, self.criterion), *outputs
            outputs["loss"] = self.mixer.loss(outputs["logits"], target, self.criterion)
            return outputs

        unlabelled = {name: value for name, value in inputs.items() if name != "labels"} | {"pixel_values": mixed}
        return super().compute_loss(run, unlabelled, *args, **kwargs)  # type: ignore[misc]


class MixTrainer(MixTrainerMixin, Trainer):
    """``transformers.Trainer`` with a mixer."""


def _draws_of(mixer: Mixer) -> TrainerCallback:
    class MixerState(TrainerCallback, ExportableState):  # a class per mixer: the Trainer restores with another instance
        draws = property(lambda self: mixer.state_dict(), lambda self, state: mixer.load_state_dict(state))

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"draws": self.draws}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # A checkpoint written without a mixer lacks the entry: the draws start again.
            self.draws = state.stateful_callbacks.setdefault("MixerState", self.state())["attributes"]["draws"]

    return MixerState()


def _refuse_unmixed(trainer: Any) -> None:
    if trainer.model_init is not None:
        raise UserError("model_init makes a model that the mixer does not know: give model=, and a mixer for it")
    if not any(module is trainer.mixer.model for module in trainer.model.modules()):
        raise UserError("the mixer was made for a model that is not in the Trainer's: make one for that model")
    if trainer.compute_loss_func is not None:
        raise UserError("compute_loss_func does not take mixed targets: give criterion=, on logits and soft targets")
    if trainer.args.label_smoothing_factor:
        raise UserError("label_smoothing_factor smooths class indices only: give label_smoothing= to the mixer")
