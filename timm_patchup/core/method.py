"""What a method is: a value that decides, batch by batch, what is altered.

A ``Method`` holds settings only, no model and no tensor, so it can be compared, printed and stored. The mixer asks it
for a ``Change`` (``draw.py``) and gives it a ``DrawContext``. The registry at the end of the file is what
``list_methods`` and ``create_mixer`` know.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ..errors import NoEffect, UserError, WrongType, brief, nearest, unknown
from .draw import INPUT, Change, DrawContext
from .functional import MethodObjective
from .renamed import renamed
from .settings import CheckedSettings, Setting, collecting, raise_together, setting, settings_of

LAM = "one lam for the batch, or one per sample"
PAPER_SITES = (INPUT, "stem", "stage1", "stage2")


@dataclass(frozen=True, kw_only=True)
class Method(CheckedSettings):
    """Base of all methods: at the input of any model. A subclass defines ``change`` and declares its settings.

    Attributes:
        name: under which it is registered.
        default_sites: the sites it acts at unless its settings name others.
        needs_saliency: whether it asks for the saliency of the images, for which the model runs once more.
    """

    name: ClassVar[str] = ""
    default_sites: ClassVar[tuple[str, ...]] = (INPUT,)
    needs_saliency: ClassVar[bool] = False

    prob: float = setting(1.0, "probability that a batch is altered", low=0, high=1)

    @property
    def objective(self) -> MethodObjective:
        """``"paper"`` for L1 + L2, ``"l1"`` or ``"l2"`` for one of the two terms; a subclass may make it a setting.

        ``"authors"`` is L1 + L2 with the own target in place of W at the input, as in the authors' WRN.
        """
        return "l2"

    @property
    def adds_loss(self) -> bool:
        """Whether ``added_loss`` adds to the loss of a batch whose samples were mixed; its images are kept for that."""
        return False

    @property
    def at_all_sites(self) -> bool:
        """Whether a batch is altered at all sites together and not at a random one; only erasing can be."""
        return False

    @property
    def site_names(self) -> tuple[str, ...] | None:
        """The sites that the settings name, None for the default ones as far as a model has them."""
        return self.default_sites

    @property
    def members(self) -> tuple["Method", ...]:
        """The methods that ``choose`` can return."""
        return (self,)

    def choose(self, generator: torch.Generator) -> "Method":
        """Return the method that acts on a batch: this one, unless it stands for several."""
        return self

    def check_sites(self, names: Sequence[str]) -> None:
        """Raise UserError if settings do not fit the sites of a model."""

    def check_model(self, model: nn.Module) -> None:
        """Raise UserError if settings do not fit a model."""

    def added_loss(self, unmixed: Callable[[], Tensor]) -> Tensor:
        """Return what is added to the loss of a mixed batch, if ``adds_loss``.

        Args:
            unmixed: runs the model on the images as they came, as training does, and returns their loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must define added_loss(self, unmixed)")

    def change(self, context: DrawContext) -> Change:
        """Draw what happens to a batch at a site: the one thing a method must define.

        Masks are bool, (1 or B, 1 or C, H, W), or (1, 1, 1, 1) for everything, made on ``context.device``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define change(self, context): it returns a Mix or Erase")


@dataclass(frozen=True, kw_only=True)
class SiteMethod(Method):
    """Base of methods that act inside the model: at one random site per batch, or at all (``at_all_sites``)."""

    default_sites: ClassVar[tuple[str, ...]] = PAPER_SITES

    sites: tuple[str, ...] | None = setting(
        None, "names of sites or modules where the method may act; none for the default set"
    )

    @property
    def site_names(self) -> tuple[str, ...] | None:
        return self.sites


_METHODS: dict[str, type[Method]] = {}
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register_method(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Register a method under a name: a decorator for a frozen dataclass that derives from Method or SiteMethod.

    Example:
        >>> @register_method("swap_all")
        ... @dataclass(frozen=True, kw_only=True)
        ... class SwapAll(SiteMethod):
        ...     def change(self, context):
        ...         return Mix(context.everywhere())
    """

    def register(kind: AnyMethod) -> AnyMethod:
        if name in _METHODS:
            raise UserError(f"method {brief(name)} is already registered, by {_METHODS[name].__qualname__}")
        add_method(name, kind)
        kind.name = name
        return kind

    return register


def add_method(name: str, kind: Any) -> None:
    """Add a class to the registry; one that is registered already keeps its name and is known by this one, too.

    Raises:
        WrongType: it is not a method.
    """
    parameters = getattr(kind, "__dict__", {}).get("__dataclass_params__")
    if not (isinstance(kind, type) and issubclass(kind, Method) and parameters and parameters.frozen):
        raise WrongType(f"method {brief(name)} must be a frozen dataclass derived from Method, got {brief(kind)}")
    if "name" not in vars(kind):
        kind.name = name
    _METHODS[name] = kind


def list_methods() -> list[str]:
    """Return the names of all methods, sorted."""
    return sorted(_METHODS)


def method_type(name: str) -> type[Method]:
    """Return the class of a method; raise UserError with the nearest names if there is none."""
    if name not in _METHODS and ":" in name:
        raise UserError(
            f"method {brief(name)} is from outside and was not imported: name it in a call or with --mix, or give "
            f"--allow-imports"
        )
    if name not in _METHODS:
        raise unknown("method", name, list_methods())
    return _METHODS[name]


def method_settings(name: str) -> dict[str, Setting]:
    """Return the settings of a method by name, sorted."""
    declared = settings_of(method_type(name))
    return {key: declared[key] for key in sorted(declared)}


def make_method(name: str, **settings: Any) -> Method:
    """Make a method of the registry.

    Args:
        name: one of ``list_methods()``.
        **settings: settings that differ from the method's defaults.

    Raises:
        UserError: unknown method or setting, or a value outside of its range.

    Example:
        >>> make_method("manifold_mixup", alpha=1.5).prob
        1.0
    """
    known = method_settings(name)
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
    return method_type(name)(**settings)


def read_method(name: str, values: Mapping[str, Any], *, prefix: str = "") -> Method:
    """Make a method from the values of a file or of flags, in which ``5e-1`` may be a word.

    Args:
        name: one of ``list_methods()``.
        values: settings by name.
        prefix: what the user writes in front of their names.

    Raises:
        UserError: everything that is wrong, in the user's words.
    """
    if name not in _METHODS:
        raise UserError(f"mix: unknown method {brief(name)}{nearest(name, list_methods())}")
    known, errors, checked = method_settings(name), list[UserError](), dict[str, Any]()
    for key, value in values.items():
        if key not in known:
            has = f"; it has {', '.join(prefix + other for other in known)}" if known else ", which has no settings"
            errors.append(UserError(f"{prefix}{key} is not a setting of {name}{has}"))
            continue
        with collecting(errors):
            checked[key] = known[key].check(known[key].from_text(value), called=prefix + key)
    raise_together(errors)
    try:
        return make_method(name, **checked)
    except NoEffect as error:
        raise NoEffect({prefix + key: why for key, why in error.reasons.items()}) from None


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, Place=DrawContext)
