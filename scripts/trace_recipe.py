"""Print how much work it is to make a recipe: the calls inside the package, the Recipes made and the files read.

python scripts/trace_recipe.py --recipe cifar10_wrn28_10_hard_patchup
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import timm_patchup
from timm_patchup.recipe import load_recipe

PACKAGE = Path(timm_patchup.__file__).parent


@dataclass(frozen=True)
class RecipeTrace:
    """What one ``load_recipe`` did.

    Attributes:
        calls: Python calls inside the package, by file and function.
        recipes: number of Recipes that were made.
        reads: how often each file was read, by its path.
    """

    calls: Counter[str]
    recipes: int
    reads: Counter[str]


def trace_load_recipe(source: str, overrides: Mapping[str, Any] | None = None) -> RecipeTrace:
    """Load a recipe and count; what is kept from earlier calls is made before."""
    load_recipe(source, overrides)
    calls, reads = Counter[str](), Counter[str]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            calls[f"{Path(code.co_filename).relative_to(PACKAGE)} {code.co_name}"] += 1
            if code.co_name == "read_text":
                reads[str(frame.f_locals["path"])] += 1

    sys.setprofile(count)
    try:
        load_recipe(source, overrides)
    finally:
        sys.setprofile(None)
    return RecipeTrace(calls, calls["recipe/schema.py __post_init__"], reads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="cifar10_wrn28_10_hard_patchup", help="default: %(default)s")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="functions to list (default: %(default)s)")
    given = parser.parse_args()
    trace = trace_load_recipe(given.recipe)
    print(f"{given.recipe}: {trace.calls.total()} calls, {trace.recipes} Recipes, {trace.reads.total()} files read")
    for name, number in trace.calls.most_common(given.top):
        print(f"{number:7}  {name}")


if __name__ == "__main__":
    main()
