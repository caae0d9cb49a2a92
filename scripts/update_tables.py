"""Write the tables of the documentation that follow from the code: settings of the methods, keys, benchmarks.

    python scripts/update_tables.py            # after a setting, a method, a key or a benchmark has changed
    python scripts/update_tables.py --check    # only list the files that are out of date

A table is between ``<!-- table:NAME -->`` and ``<!-- /table -->``. ``settings:METHOD`` has the settings of a method,
``patchup`` the settings of hard and soft side by side, ``keys`` the keys of a recipe, ``benchmarks`` the benchmarks,
``protocol`` the paper, the authors' code and ours (``protocol_table.py``). ``study:NAME`` and ``cost:NAME`` are the
results of a study and what they cost, ``gains`` the paper's gains beside ours, ``default`` what the default run ends at
(``results_tables.py``). The headers of the benchmarks have their cost and the numbers to expect
(``benchmark_headers.py``).
"""

import argparse
import re
import runpy
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from timm_patchup.core.method import method_settings
from timm_patchup.core.settings import Setting, plain, settings_of
from timm_patchup.errors import unknown
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.compose import list_benchmarks

ROOT = Path(__file__).resolve().parents[1]
_TABLE = re.compile(r"(<!-- table:([\w:]+) -->\n).*?(<!-- /table -->)", flags=re.DOTALL)


def update(text: str) -> tuple[str, list[str]]:
    """Return a page with its tables generated again, and their names."""
    names: list[str] = []

    def table(found: re.Match[str]) -> str:
        names.append(found[2])
        kind, _, of = found[2].partition(":")
        if kind not in TABLES:
            raise unknown("table", found[2], TABLES)
        return f"{found[1]}{TABLES[kind](*([of] if of else []))}\n{found[3]}"

    return _TABLE.sub(table, text), names


def settings_table(method: str) -> str:
    rows = [
        (f"`{name}`", _value(own.default), _allowed(own), own.help) for name, own in method_settings(method).items()
    ]
    return _markdown(("setting", "default", "allowed", "what it is"), rows)


def patchup_table() -> str:
    hard, soft = method_settings("hard_patchup"), method_settings("soft_patchup")
    rows = [
        (f"`{name}`", _value(hard[name].default) if name in hard else "-", _value(own.default), _allowed(own), own.help)
        for name, own in soft.items()
    ]
    return _markdown(("setting", "hard", "soft", "allowed", "what it is"), rows)


def keys_table() -> str:
    rows = [(f"`{name}`", _value(key.default), _allowed(key), key.help) for name, key in settings_of(Recipe).items()]
    return _markdown(("key", "default", "allowed", "what it is"), rows)


def benchmarks_table() -> str:
    rows = []
    for name in list_benchmarks():
        recipe = load_recipe(f"{name}_none")
        steps = {
            "multistep": f", x {recipe.decay_rate:g} after {', '.join(map(str, recipe.decay_milestones))}",
            "step": f", x {recipe.decay_rate:g} every {recipe.decay_epochs:g}",
        }.get(recipe.sched, f", {recipe.sched}")
        scarce = f", {recipe.train_per_class} per class" if recipe.train_per_class else ""
        data = recipe.dataset.removeprefix("hfds/") + scarce
        rows.append((f"`{name}`", data, recipe.model, recipe.epochs, recipe.batch_size, f"{recipe.lr:g}{steps}"))
    return _markdown(("benchmark", "data", "model", "epochs", "batch", "learning rate"), rows)


def protocol_table() -> str:
    return _markdown(("point", "paper", "authors' code", "ours"), _script("protocol_table")["protocol_rows"]())


@cache
def _script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))


def _of_results(function: str) -> Callable[..., str]:
    return lambda *names: _script("results_tables")[function](*names)


TABLES: dict[str, Any] = {
    "protocol": protocol_table,
    "settings": settings_table,
    "patchup": patchup_table,
    "keys": keys_table,
    "benchmarks": benchmarks_table,
    "study": _of_results("study_table"),
    "cost": _of_results("cost_line"),
    "default": _of_results("default_line"),
    "gains": _of_results("gains_table"),
}


def _allowed(setting: Setting) -> str:
    """Return what is allowed in a few words, such as ``"a number in [0, 1]"`` or ``"hard, soft"``."""
    kinds = [kind for kind in setting.types if not (setting.takes_one and get_origin(kind) in (list, tuple))]
    several = " or a list of them" * (setting.takes_one and setting.takes_several)
    text = "".join(_words(setting, kind) for kind in kinds) + several
    return f"{text}{' or none' * setting.optional}{' or auto' * setting.auto}".replace("|", "\\|")


def _words(setting: Setting, kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) in (list, tuple):
        item = get_args(kind)[0]
        return "a list of names" if item is str else f"a list, each {setting.range(item)}"
    named = {bool: "true or false", str: "a name", dict: "a mapping"}
    return named.get(get_origin(kind) or kind) or setting.range(kind)


def _value(value: Any) -> str:
    value = plain(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return "-" if value == {} else str(value)


def _markdown(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pages() -> dict[Path, str]:
    """Return the text of every page with tables and of every benchmark, as it should be."""
    written = [ROOT / "README.md", *ROOT.glob("[!.]*/**/README.md"), ROOT / "recipes" / "RESULTS.md"]
    found = {page: update(page.read_text(encoding="utf-8"))[0] for page in sorted(written)}
    update_header = _script("benchmark_headers")["update_header"]
    for benchmark in sorted((ROOT / "recipes" / "benchmarks").glob("*.yaml")):
        found[benchmark] = update_header(benchmark.read_text(encoding="utf-8"), benchmark.stem)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    check = parser.parse_args().check
    outdated = []
    for page, new in pages().items():
        if new != page.read_text(encoding="utf-8"):
            outdated.append(page.relative_to(ROOT).as_posix())
            if not check:
                page.write_text(new, encoding="utf-8")
    for name in outdated:
        print(f"{name}: {'out of date' if check else 'updated'}")
    raise SystemExit(1 if check and outdated else 0)


if __name__ == "__main__":
    main()
