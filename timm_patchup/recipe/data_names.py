"""Data by name: what ``--data`` and ``timm_patchup.hub.fetch`` take."""

from pathlib import Path

from ..errors import UserError, nearest
from .compose import list_benchmarks, list_recipes, load_recipe, read_keys, recipes_dir
from .schema import Recipe


def list_data() -> list[str]:
    """Return the names of the data sets that recipes are made of."""
    return [name for name, keys in _parts().items() if "dataset" in keys]


def load_data_recipe(name: str) -> Recipe:
    """Return a recipe whose data keys are those of a data set, a benchmark, a recipe or a YAML file.

    Raises:
        UserError: there is nothing of that name.
    """
    if name in list_data():
        return Recipe.from_dict(_parts()[name])
    if name in list_benchmarks():
        return load_recipe(f"{name}_none")
    if name in list_recipes() or Path(name).suffix in (".yaml", ".yml"):
        return load_recipe(name)
    hint = nearest(name, [*list_data(), *list_benchmarks()])
    raise UserError([f"--data: unknown data {name!r}{hint}; data are {', '.join(list_data())}"])


def find_data_recipe(dataset: str) -> Recipe | None:
    """Return the recipe of the data set that is stored there, None where it is none of ours."""
    return next((Recipe.from_dict(keys) for keys in _parts().values() if keys.get("dataset") == dataset), None)


def _parts() -> dict[str, dict]:
    paths = sorted((recipes_dir() / "parts").glob("*.yaml"))
    return {path.stem: read_keys(path, ()).values for path in paths}
