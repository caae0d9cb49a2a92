"""From a name or a file to a recipe.

``BENCHMARK_METHOD`` is a file of ``recipes/benchmarks`` and one of ``recipes/methods``. A file lists what it builds on
under ``include`` (parts, or whole recipes) and overrides it with its own keys; ``when`` in a method file has the keys
that differ for a part or a benchmark. ``sites`` of a network is where methods act inside it, with PatchUp's block size
at each: ``mix_sites`` and ``mix_block_size`` of the methods that have them. ``protocol`` names a file of
``recipes/protocols``, whose keys replace those of the recipe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.method import INPUT, PAPER_SITES, list_methods, method_settings, method_type
from ..core.outside import import_methods, require_consent, unknown_outside
from ..errors import UserError, WrongType, brief, nearest, unknown
from ..system.checked import check_keys, read_yaml
from .override import override
from .schema import MIX_PREFIX, Recipe
from .stored import stored_recipe, without_retired

DEFAULT = "fashion_mini_hard_patchup"
SITES, PROTOCOL = "sites", "protocol"


@dataclass
class Keys:
    """Flat keys on the way to a recipe, and the names of the files they came from.

    Attributes:
        sites: the sites of the network, with PatchUp's block size at each; None if no file names them.
        protocol: the protocol that a file asks for; None for the recipe's own.
    """

    values: dict[str, Any] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    sites: dict[str, int] | None = None
    protocol: str | None = None

    def update(self, other: "Keys") -> None:
        self.values = override(self.values, other.values)
        self.parts |= other.parts
        self.sites = other.sites or self.sites
        self.protocol = other.protocol or self.protocol

    def take(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Take what is no key of a recipe out of the keys of a file, and return the rest."""
        rest = dict(own)
        self.sites, self.protocol = rest.pop(SITES, self.sites), rest.pop(PROTOCOL, self.protocol)
        if self.sites is not None and not _are_sites(self.sites):
            raise UserError(f"{SITES} must be a mapping of sites to block sizes, got {brief(self.sites)}")
        return rest


def _are_sites(sites: Any) -> bool:
    sizes = sites.values() if isinstance(sites, dict) else [None]
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)


def recipes_dir() -> Path:
    """Return the folder of recipes: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def list_benchmarks() -> list[str]:
    return sorted(path.stem for path in (recipes_dir() / "benchmarks").glob("*.yaml"))


def list_recipe_methods() -> list[str]:
    return sorted(path.stem for path in (recipes_dir() / "methods").glob("*.yaml"))


def list_protocols() -> list[str]:
    return sorted(path.stem for path in (recipes_dir() / "protocols").glob("*.yaml"))


def list_recipes() -> list[str]:
    """Return the names of all recipes."""
    return [f"{benchmark}_{method}" for benchmark in list_benchmarks() for method in list_recipe_methods()]


def load_recipe(
    source: str | Path = DEFAULT, overrides: Mapping[str, Any] | None = None, *, allow_imports: bool = False
) -> Recipe:
    """Return the recipe of a name or a YAML file, with some keys overridden.

    Args:
        source: a name of ``list_recipes()``, or the path of a file, such as the recipe.yaml of a run.
        overrides: flat keys that replace those of the recipe. Another ``mix`` comes with its own settings, another
            ``model`` drops the ``model_kwargs`` and sites of the recipe's, another ``sched`` the keys of its schedule.
            ``protocol`` is a name of ``list_protocols()``. A ``mix: package.module:Name`` among them is imported.
        allow_imports: whether to import the methods from outside that the file names, which runs their code.

    Raises:
        UserError: everything that is wrong, together.

    Example:
        >>> load_recipe("cifar10_wrn28_10_soft_patchup", {"epochs": 2}).mix
        'soft_patchup'
    """
    if not isinstance(source, (str, Path)):
        raise WrongType(f"a recipe is given by its name or the path of its file, got {brief(source)}")
    given = dict(overrides or {})
    keys = _composed(source, given)
    if given.get("mix") is None:
        require_consent(keys.values.get("mix"), named_in=source, allowed=allow_imports)
        if unknown_outside(keys.values.get("mix")):
            import_methods(keys.values.get("mix"))
            _apply_sites(keys, keys.values)  # which settings it has is known only now
    import_methods(keys.values.get("mix"))
    return Recipe.from_dict(override(keys.values, _without_choices(given)))


def read_recipe(source: str | Path) -> Recipe:
    """Return the recipe of a name or a YAML file, of which the method is not needed: nothing is imported."""
    return Recipe.from_dict(_composed(source, {}).values)


def _without_choices(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in overrides.items() if name not in ("mix", PROTOCOL)}


def _composed(source: str | Path, overrides: Mapping[str, Any]) -> Keys:
    """Return the keys of a recipe, with the model, the method and the protocol that overrides choose."""
    try:
        keys = _compose(source)
    except UserError as error:
        raise UserError([*error.problems, *_problems_of(overrides)]) from None
    if overrides.get("model") not in (None, keys.values.get("model")):
        own = _at_sites(keys)
        kept = {name: value for name, value in keys.values.items() if name not in own or value != own[name]}
        keys.values = {name: value for name, value in kept.items() if name != "model_kwargs"}
        keys.sites = None
    if overrides.get("mix") is not None:
        _choose(keys, overrides["mix"])
    protocol = overrides.get(PROTOCOL) or keys.protocol
    if protocol is not None:
        _apply_protocol(keys, protocol)
    chosen = _chosen_sites(overrides)
    if chosen is not None and isinstance(keys.values.get("mix_block_size"), list):
        keys.values.update(_at_sites(keys, chosen))  # the block sizes of other sites
    return keys


def read_resolved(path: Path) -> Recipe:
    """Return the recipe in a file that has all keys itself, as runs write it; it cannot include another file.

    Raises:
        UserError: everything that is wrong with it.
    """
    return stored_recipe(_mapping(path))


def _problems_of(overrides: Mapping[str, Any]) -> list[str]:
    try:
        keys = {name: value for name, value in overrides.items() if not name.startswith(MIX_PREFIX)}
        Recipe.from_dict({name: value for name, value in keys.items() if name != PROTOCOL})
    except UserError as error:
        return error.problems
    return []


def split_name(name: str) -> tuple[str, str]:
    """Split BENCHMARK_METHOD; raise UserError with the nearest names if there is no such recipe."""
    for benchmark in list_benchmarks():
        for method in list_recipe_methods():
            if name == f"{benchmark}_{method}":
                return benchmark, method
    if name in list_benchmarks():
        candidates = ", ".join(f"{name}_{method}" for method in list_recipe_methods())
        raise UserError(f"{brief(name)} is a benchmark; a recipe also names the method: {candidates}")
    hint = nearest(name, list_recipes())
    raise UserError(f"no recipe {brief(name)}{hint or '; list_recipes() (--list-recipes) has all'}")


def _compose(source: str | Path, seen: tuple[Path, ...] = ()) -> Keys:
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or _is_file(path):
        return read_keys(path, seen)
    benchmark, method = split_name(str(source))
    keys = read_keys(recipes_dir() / "benchmarks" / f"{benchmark}.yaml")
    _apply_method(keys, method)
    return keys


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a name of a file
        return False


def _apply_method(keys: Keys, method: str) -> None:
    values = _mapping(recipes_dir() / "methods" / f"{method}.yaml")
    special = values.pop("when", {})
    keys.values.update(values)
    keys.values.update(_at_sites(keys))
    for part, differing in special.items():
        if part in keys.parts:
            keys.values.update(differing)


def _apply_protocol(keys: Keys, protocol: str) -> None:
    """Replace keys by those of a protocol.

    ``when`` in its file has those of a part, a benchmark, a method, or a method on a part: ``wrn28_10_hard_patchup``.
    """
    if protocol not in list_protocols():
        raise unknown(PROTOCOL, protocol, list_protocols())
    values = _mapping(recipes_dir() / "protocols" / f"{protocol}.yaml")
    special = values.pop("when", {})
    mix = str(keys.values.get("mix", "none"))
    names = {mix, *keys.parts, *(f"{part}_{mix}" for part in keys.parts)}
    for name, differing in special.items():
        if name in names:
            values.update(differing)
    sites = values.pop(SITES, None)
    if sites is not None and keys.sites is not None:  # another model has other sites
        keys.sites = sites
        keys.values.update(_at_sites(keys))
    keys.values = override(keys.values, values)


def _at_sites(keys: Keys, chosen: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the sites of the network as settings of the method, with the block sizes there if it has one per site.

    Args:
        keys: with the network's sites and the method.
        chosen: other sites to take; None for those of the network, without the input if the method never acts there.
    """
    sites, mix = keys.sites, keys.values.get("mix", "none")
    if sites is None or mix not in list_methods() or SITES not in method_settings(mix):
        return {}
    with_input = INPUT in method_type(mix).default_sites
    names = list(chosen or (name for name in sites if name != INPUT or with_input))
    settings: dict[str, Any] = {"mix_sites": names}
    block_size = method_settings(mix).get("block_size")
    if block_size is not None and block_size.takes_several:
        sizes = [sites.get(str(name), block_size.default) for name in names]  # checked later
        settings["mix_block_size"] = sizes if len(set(sizes)) > 1 else sizes[0]
    return settings


def _choose(keys: Keys, mix: Any) -> None:
    """Take another method, or several, with their own settings; the same ones stay as they are."""
    if mix == keys.values.get("mix", "none"):
        return
    keys.values = {name: value for name, value in keys.values.items() if not name.startswith(MIX_PREFIX)} | {"mix": mix}
    if isinstance(mix, str) and mix in list_recipe_methods():
        _apply_method(keys, mix)  # augmix and autoaugment are the method none with timm's aa
    for method in mix if isinstance(mix, list) else ():
        if method in list_methods() and method in list_recipe_methods():
            own = Keys(parts=keys.parts, sites=keys.sites)
            _apply_method(own, method)
            settings = {name: value for name, value in own.values.items() if name.startswith(MIX_PREFIX)}
            by_name = {name.removeprefix(MIX_PREFIX): value for name, value in settings.items()}
            keys.values.setdefault("mix_settings", {})[method] = by_name


def read_keys(path: Path, seen: tuple[Path, ...] = ()) -> Keys:
    """Read a file of keys and the files it includes; ``seen`` are the files that led to it."""
    path = path.absolute()
    if path in seen:
        raise UserError(f"{path} includes itself")
    own = _mapping(path)
    keys = Keys(parts={path.stem})
    included = own.pop("include", [])
    if not isinstance(included, list):
        raise UserError(f"{path}: include must be a list of parts or recipes, got {brief(included)}")
    for name in included:
        part = recipes_dir() / "parts" / f"{name}.yaml"
        beside = path.parent / str(name)
        if _is_file(part):
            keys.update(read_keys(part, seen=(*seen, path)))
        elif _is_file(beside):
            keys.update(read_keys(beside, seen=(*seen, path)))
        else:
            keys.update(_compose(str(name), seen=(*seen, path)))
    names_sites = SITES in own
    own = keys.take(own)
    mix = own.get("mix")
    names_sites |= "mix" not in keys.values and mix is not None  # its sites are those of an included network
    if "mix" in keys.values and "mix" in own:
        _choose(keys, own.pop("mix"))
    keys.values = override(keys.values, own)
    if names_sites:
        _apply_sites(keys, own)
    return keys


def _apply_sites(keys: Keys, own: Mapping[str, Any]) -> None:
    """Make the network's sites settings of the method, or of each of several, unless a file's own keys set them."""
    mix = keys.values.get("mix", "none")
    if isinstance(mix, str):
        at_sites = _at_sites(keys, _chosen_sites(own))
        keys.values |= {name: value for name, value in at_sites.items() if name not in own}
    elif isinstance(mix, list):
        each, given = keys.values.get("mix_settings") or {}, own.get("mix_settings") or {}
        for method in mix if isinstance(each, Mapping) and isinstance(given, Mapping) else ():
            mine = {f"{MIX_PREFIX}{name}": value for name, value in (given.get(method) or {}).items()}
            mine |= {name: value for name, value in own.items() if name.startswith(MIX_PREFIX)}
            at_sites = _at_sites(Keys({"mix": method}, sites=keys.sites), _chosen_sites(mine))
            settings = {name.removeprefix(MIX_PREFIX): value for name, value in at_sites.items() if name not in mine}
            each = {**each, method: {**each.get(method, {}), **settings}} if settings else each
        if each:
            keys.values["mix_settings"] = each


def _chosen_sites(given: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the sites that keys name, the default ones for none; None if they leave them to the network."""
    sites = given.get("mix_sites") or list(PAPER_SITES)
    return sites if "mix_sites" in given and isinstance(sites, list) else None


def _mapping(path: Path) -> dict[str, Any]:
    values = check_keys(read_yaml(path), {}, where=str(path))
    return without_retired(values)
