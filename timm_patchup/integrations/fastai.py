"""A callback for fastai: training batches are mixed before the model runs, and their loss is the mixer's.

fastai's own loss is computed as well, of the labels as they came, and replaced: nothing of the Learner is patched.
"""

from fastai.callback.core import Callback
from torch import Tensor

from timm_patchup.core.loss import Criterion
from timm_patchup.core.mixer import Mixer
from timm_patchup.errors import UserError


class MixLearnerCallback(Callback):
    """Mixes the training batches of a Learner.

    Args:
        mixer: a mixer for the Learner's model, or for a model inside it.
        criterion: l(logits, soft targets) of training batches, as for ``mixer.loss``; None for cross-entropy.

    Example:
        >>> learner = Learner(dls, model, loss_func=CrossEntropyLossFlat(), cbs=MixLearnerCallback(PatchUp(model)))
    """

    run_valid = False
    order = -5  # before those that scale the loss: gradient accumulation, mixed precision

    def __init__(self, mixer: Mixer, criterion: Criterion | None = None) -> None:
        self.mixer, self.criterion = mixer, criterion

    def before_fit(self) -> None:
        if not any(module is self.mixer.model for module in self.learn.model.modules()):
            raise UserError(
                "MixLearnerCallback: the mixer was made for a model that is not in the Learner's: "
                "make one for learn.model"
            )

    def before_batch(self) -> None:
        if len(self.learn.xb) != 1 or len(self.learn.yb) != 1:
            raise UserError(
                f"MixLearnerCallback: a batch must be one tensor of images and one of targets, got "
                f"{len(self.learn.xb)} and {len(self.learn.yb)}: mix such batches in your own loop"
            )
        if not self.mixer.model.training:
            raise UserError(
                "MixLearnerCallback: the mixer's model is in eval mode and would not be mixed: call model.train()"
            )
        # fastai's own kinds of tensors check what they are combined with.
        images, labels = (tensor.as_subclass(Tensor) for tensor in (*self.learn.xb, *self.learn.yb))
        mixed, self.target = self.mixer(images, labels)
        self.learn.xb = (mixed,)

    def after_loss(self) -> None:
        self.learn.loss_grad = self.mixer.loss(self.learn.pred, self.target, self.criterion)
        self.learn.loss = self.learn.loss_grad.clone()
