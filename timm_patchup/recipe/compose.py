"""From a name or a file to a recipe.

``BENCHMARK_METHOD`` is a file of ``recipes/benchmarks`` and one of ``recipes/methods``. A file lists what it builds on
under ``include`` (parts, or whole recipes) and overrides it with its own keys; ``when`` in a method file has the keys
that differ for a part or a benchmark. ``sites`` of a network is where methods act inside it, with PatchUp's block size
at each: ``mix_sites`` and ``mix_block_size`` of the methods that have them. ``protocol`` names a file of
``recipes/protocols``, whose keys replace the recipe's.

All keys are put into one mapping, file by file and then the caller's (``layers``); one Recipe is made of it at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.method import INPUT, PAPER_SITES, list_methods, method_settings, method_type
from ..core.outside import import_methods, require_consent, unknown_outside
from ..errors import UserError, WrongType, brief, nearest, unknown
from ..system.checked import check_keys, read_yaml
from .layers import override, stored_recipe, without_retired
from .schema import MIX_PREFIX, Recipe

DEFAULT = "fashion_mini_hard_patchup"
SITES, PROTOCOL = "sites", "protocol"


def recipes_dir() -> Path:
    """Return the folder of recipes: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def names_in(folder: str) -> list[str]:
    """Return the names of the files in a folder of recipes, such as ``"studies"``."""
    return sorted(path.stem for path in (recipes_dir() / folder).glob("*.yaml"))


def list_benchmarks() -> list[str]:
    return names_in("benchmarks")


def list_recipe_methods() -> list[str]:
    return names_in("methods")


def list_protocols() -> list[str]:
    return names_in("protocols")


def list_recipes() -> list[str]:
    """Return the names of all recipes."""
    methods = list_recipe_methods()
    return [f"{benchmark}_{method}" for benchmark in list_benchmarks() for method in methods]


def load_recipe(
    source: str | Path = DEFAULT, overrides: Mapping[str, Any] | None = None, *, allow_imports: bool = False
) -> Recipe:
    """Return the recipe of a name or a YAML file, with some keys overridden.

    Args:
        source: a name of ``list_recipes()``, or the path of a file, such as the recipe.yaml of a run.
        overrides: flat keys that replace keys of the recipe. Another ``mix`` comes with its own settings, another
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
    try:
        keys = _of_source(source)
    except UserError as error:
        raise UserError([*error.problems, *_problems_of(given)]) from None
    keys.choose(given)
    mix = keys.values.get("mix")
    if given.get("mix") is None and unknown_outside(mix):
        require_consent(mix, named_in=source, allowed=allow_imports)
        import_methods(mix)
        keys.apply_sites(keys.values)  # which settings it has is known only now
    import_methods(mix)
    return Recipe.from_dict(override(keys.values, _without(given, "mix", PROTOCOL)))


def read_recipe(source: str | Path) -> Recipe:
    """Return the recipe of a name or a YAML file for callers that need no method: nothing is imported."""
    keys = _of_source(source)
    keys.choose({})
    return Recipe.from_dict(keys.values)


def read_resolved(path: Path) -> Recipe:
    """Return the recipe in a file that has all keys itself, as runs write it; it cannot include another file.

    Raises:
        UserError: everything that is wrong with it.
    """
    return stored_recipe(_read(path))


@dataclass
class Keys:
    """Flat keys on the way to a recipe, and the names of the files they came from.

    Attributes:
        sites: the sites of the network, with PatchUp's block size at each; None if no file names them.
        protocol: the protocol that a file asks for; None for the recipe's own.
        files: the contents of the files that were read, by path.
    """

    values: dict[str, Any] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    sites: dict[str, int] | None = None
    protocol: str | None = None
    files: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def read(self, path: Path) -> dict[str, Any]:
        """Return the keys in a file, which is read once."""
        if path not in self.files:
            self.files[path] = _read(path)
        return dict(self.files[path])

    def include(self, other: "Keys") -> None:
        """Put the keys of another recipe or part over these."""
        self.values = override(self.values, other.values)
        self.parts |= other.parts
        self.sites = other.sites or self.sites
        self.protocol = other.protocol or self.protocol

    def put(self, own: dict[str, Any]) -> None:
        """Put the keys of a file over the keys of the files that it includes."""
        self.protocol, self.sites = own.pop(PROTOCOL, self.protocol), own.get(SITES, self.sites)
        sizes = self.sites.values() if isinstance(self.sites, dict) else [None] * (self.sites is not None)
        if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
            raise UserError(f"{SITES} must be a mapping of sites to block sizes, got {brief(self.sites)}")
        named_first = "mix" in own and "mix" not in self.values  # the sites come from an included network
        if "mix" in own and not named_first:
            self.take_method(own.pop("mix"))
        self.values = override(self.values, _without(own, SITES))
        if SITES in own or named_first:
            self.apply_sites(own)

    def choose(self, given: Mapping[str, Any]) -> None:
        """Take the model, the method and the protocol that the caller gives, or the file's own protocol."""
        if given.get("model") not in (None, self.values.get("model")):
            at_sites = self._at_sites(self.values.get("mix"))
            of_network = [name for name, value in at_sites.items() if self.values.get(name) == value]
            self.values, self.sites = _without(self.values, "model_kwargs", *of_network), None
        if given.get("mix") is not None:
            self.take_method(given["mix"])
        if protocol := given.get(PROTOCOL) or self.protocol:
            self._apply_protocol(protocol)
        chosen = _chosen_sites(given)
        if chosen is not None and isinstance(self.values.get("mix_block_size"), list):
            self.values |= self._at_sites(self.values.get("mix"), chosen)  # the block sizes of other sites

    def take_method(self, mix: Any) -> None:
        """Take another method, or several, with their own settings; the same ones stay as they are."""
        if mix == self.values.get("mix", "none"):
            return
        self.values = {name: one for name, one in self.values.items() if not name.startswith(MIX_PREFIX)} | {"mix": mix}
        known = list_recipe_methods()
        if isinstance(mix, str) and mix in known:
            self.apply_method(mix)  # augmix and autoaugment are the method none with timm's aa
        for method in mix if isinstance(mix, list) else ():
            if method in list_methods() and method in known:
                own = Keys(parts=self.parts, sites=self.sites, files=self.files)
                own.apply_method(method)
                self.values.setdefault("mix_settings", {})[method] = _settings_in(own.values)

    def apply_method(self, method: str) -> None:
        """Put the settings of a method's file over the keys, with the sites of the network."""
        values = self.read(recipes_dir() / "methods" / f"{method}.yaml")
        special = values.pop("when", {})
        self.values |= values
        self.values |= self._at_sites(self.values.get("mix"))
        for part, differing in special.items():
            if part in self.parts:
                self.values |= differing

    def _apply_protocol(self, protocol: str) -> None:
        """Replace keys by the keys of a protocol.

        ``when`` in its file has the keys of a part, a benchmark, a method, or a method on a part:
        ``wrn28_10_hard_patchup``.
        """
        if protocol not in list_protocols():
            raise unknown(PROTOCOL, protocol, list_protocols())
        values = self.read(recipes_dir() / "protocols" / f"{protocol}.yaml")
        mix = str(self.values.get("mix", "none"))
        names = {mix, *self.parts, *(f"{part}_{mix}" for part in self.parts)}
        for name, differing in values.pop("when", {}).items():
            if name in names:
                values |= differing
        sites = values.pop(SITES, None)
        if sites is not None and self.sites is not None:  # another model has other sites
            self.sites = sites
            self.values |= self._at_sites(self.values.get("mix"))
        self.values = override(self.values, values)

    def apply_sites(self, own: Mapping[str, Any]) -> None:
        """Make the network's sites settings of the method, or of each of several, unless a file's own keys set them."""
        mix = self.values.get("mix")
        if not isinstance(mix, list):
            self.values |= _without(self._at_sites(mix, _chosen_sites(own)), *own)
            return
        each, given = self.values.get("mix_settings") or {}, own.get("mix_settings") or {}
        for method in mix if isinstance(each, Mapping) and isinstance(given, Mapping) else ():
            mine = {**own, **{f"{MIX_PREFIX}{name}": value for name, value in (given.get(method) or {}).items()}}
            at_sites = _settings_in(_without(self._at_sites(method, _chosen_sites(mine)), *mine))
            each = {**each, method: {**each.get(method, {}), **at_sites}} if at_sites else each
        if each:
            self.values["mix_settings"] = each

    def _at_sites(self, mix: Any, chosen: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the sites of the network as settings of a method, with the block sizes there if it has one per site.

        Args:
            mix: the method.
            chosen: other sites to take; None for the network's, without the input if the method never acts there.
        """
        if self.sites is None or mix not in list_methods() or SITES not in method_settings(mix):
            return {}
        with_input = INPUT in method_type(mix).default_sites
        names = list(chosen or (name for name in self.sites if name != INPUT or with_input))
        settings: dict[str, Any] = {"mix_sites": names}
        block_size = method_settings(mix).get("block_size")
        if block_size is not None and block_size.takes_several:
            sizes = [self.sites.get(str(name), block_size.default) for name in names]  # checked later
            settings["mix_block_size"] = sizes if len(set(sizes)) > 1 else sizes[0]
        return settings


def split_name(name: str) -> tuple[str, str]:
    """Split BENCHMARK_METHOD; raise UserError with the nearest names if there is no such recipe."""
    benchmarks, methods = list_benchmarks(), list_recipe_methods()
    for benchmark in benchmarks:
        if name.startswith(f"{benchmark}_") and (method := name.removeprefix(f"{benchmark}_")) in methods:
            return benchmark, method
    if name in benchmarks:
        candidates = ", ".join(f"{name}_{method}" for method in methods)
        raise UserError(f"{brief(name)} is a benchmark; a recipe also names the method: {candidates}")
    hint = nearest(name, list_recipes())
    raise UserError(f"no recipe {brief(name)}{hint or '; list_recipes() (--list-recipes) has all'}")


def read_keys(path: Path, seen: tuple[Path, ...] = (), files: dict[Path, dict[str, Any]] | None = None) -> Keys:
    """Read a file of keys and the files it includes; ``seen`` led to it, ``files`` were read before."""
    path = path.absolute()
    if path in seen:
        raise UserError(f"{path} includes itself")
    keys = Keys(parts={path.stem}, files={} if files is None else files)
    own = keys.read(path)
    included = own.pop("include", [])
    if not isinstance(included, list):
        raise UserError(f"{path}: include must be a list of parts or recipes, got {brief(included)}")
    for name in included:
        places = (recipes_dir() / "parts" / f"{name}.yaml", path.parent / str(name))
        keys.include(_of_source(next(filter(_is_file, places), str(name)), (*seen, path), keys.files))
    keys.put(own)
    return keys


def _of_source(source: str | Path, seen: tuple[Path, ...] = (), files: dict[Path, Any] | None = None) -> Keys:
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or _is_file(path):
        return read_keys(path, seen, files)
    benchmark, method = split_name(str(source))
    keys = read_keys(recipes_dir() / "benchmarks" / f"{benchmark}.yaml", files=files)
    keys.apply_method(method)
    return keys


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long for a name of a file
        return False


def _problems_of(overrides: Mapping[str, Any]) -> list[str]:
    try:
        Recipe.from_dict({name: one for name, one in overrides.items() if not name.startswith((MIX_PREFIX, PROTOCOL))})
    except UserError as error:
        return error.problems
    return []


def _chosen_sites(given: Mapping[str, Any]) -> Sequence[str] | None:
    """Return the sites that keys name, the default ones for none; None if they leave them to the network."""
    sites = given.get("mix_sites") or list(PAPER_SITES)
    return sites if "mix_sites" in given and isinstance(sites, list) else None


def _settings_in(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(MIX_PREFIX): one for name, one in values.items() if name.startswith(MIX_PREFIX)}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _read(path: Path) -> dict[str, Any]:
    return without_retired(check_keys(read_yaml(path), {}, where=str(path)))
