"""Make a model with a mixer compile well: separate graphs, a high enough limit, and inputs that give vectorised loops.

Nothing here changes what is computed. What Dynamo and inductor do with hooks, masks and indices was read from their
guards (``TORCH_LOGS=recompiles``) and from the code they generate (``TORCH_LOGS=output_code``).
"""

import torch
from torch import Tensor, nn

_GRAPHS_PER_KIND = 8  # Dynamo's default for a function


def mask_of_graph(changed: Tensor) -> Tensor:
    """Return a mask as the input of a graph: bytes for bool, the same memory; floats as they are.

    On the CPU, inductor reads a bool mask value by value, with a branch for each, but bytes as vectors. Inside the
    graph it is too late: the conversion would be fused into the loop over the features.
    """
    return changed.view(torch.uint8) if changed.dtype is torch.bool else changed


def indices_of_graph(partner: Tensor) -> tuple[Tensor, Tensor]:
    """Return a permutation and its inverse, int64 (B,), as inputs of a graph: the columns of one tensor.

    On the CPU, inductor can tile a loop that reads neighbours along two dimensions, as one over features and gradients
    in different memory formats does. An index vector without gaps makes the batch a third, and the loop is not
    vectorised.
    """
    indices = torch.stack([partner, partner.argsort()], dim=1)
    return indices[:, 0], indices[:, 1]


class OwnForward:
    """Gives a module a ``forward`` of its own, the same as its class's, so that torch.compile can tell it apart.

    Dynamo keeps its graphs per class and does not guard on the absence of hooks: a graph that was made for a model
    without a mixer would also run for one with, and no hook would fire. A module's own ``forward`` it does guard on.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward = vars(module).setdefault("forward", module.forward)

    def remove(self) -> None:
        if vars(self.module).get("forward") == self.forward:
            del vars(self.module)["forward"]


def allow_graphs(kinds: int) -> None:
    """Let Dynamo make as many graphs of each kind, a site or none, as it makes of a model without hooks.

    Beyond its limit it runs a model uncompiled, which is slow and easily missed: the default of 8 is reached by one
    model with three sites, train and eval mode and two sizes of image.

    The limit is raised for the process, because Dynamo reads it while it compiles, inside the model's forward pass,
    where a mixer has no say. A limit for one model is up to the caller: ``torch.compile(model, recompile_limit=...)``
    takes precedence in the torch releases that have it.
    """
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name before torch 2.6
    setattr(config, name, max(getattr(config, name), _GRAPHS_PER_KIND * kinds))
    if torch.__version__.startswith("2.4."):
        # The default from 2.5 on. Without it, a tensor that is reached through a module, as those of a hook are, is a
        # constant of the graph, and every draw makes a new graph.
        config.inline_inbuilt_nn_modules = True
