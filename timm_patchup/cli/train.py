"""The command: flags to a recipe and a run, and every way it can fail to one clear line and an exit code.

Exit codes: 0 done, 1 the run failed, 2 the call was wrong and nothing was written, 130 stopped by Ctrl-C.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..recipe import list_recipes, load_recipe
from ..recipe.compose import DEFAULT, list_benchmarks, list_recipe_methods
from ..system.network import is_repo_name
from .command import Parser, check_minimums, run_command
from .recipe_flags import add_recipe_flags, given_keys

COMMAND = "train.py"
TRACKERS = ("tensorboard", "trackio", "wandb")


@dataclass(frozen=True)
class Call:
    """What was asked for: the recipe with its overrides, and how to run it."""

    source: str | None
    overrides: dict[str, Any]
    output: Path
    experiment: str | None
    data_dir: str | None
    resume: str | bool
    overwrite: bool
    track: tuple[str, ...]
    threads: int | None
    debug: bool
    push_to_hub: str | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Train a recipe; exit with a code and one clear line if that is not possible."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped by Ctrl-C, outside training: no checkpoint was written")


def _run(words: Sequence[str]) -> int:
    parser = make_parser()
    namespace, problems = parser.read(words)
    if namespace.list_recipes:
        print_recipes()
        return 0
    call, more = _read_call(namespace)
    problems += more
    recipe = None
    try:
        recipe = load_recipe(call.source or DEFAULT, call.overrides)
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems)
    assert recipe is not None
    if namespace.show_recipe:
        print(recipe.to_yaml(), end="")
        return 0
    from ..training.run import run  # torch and the data libraries are needed from here on

    run(recipe, call)
    return 0


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        prog=COMMAND,
        description="Train a recipe; without one, the embedded default. Every key of a recipe is also a flag.",
        allow_abbrev=False,
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--recipe", metavar="NAME|FILE", help=f"a name of --list-recipes or a YAML file; default {DEFAULT}"
    )
    run.add_argument("--list-recipes", action="store_true", help="show all recipes and exit")
    run.add_argument("--show-recipe", action="store_true", help="print the resolved recipe as YAML and exit")
    run.add_argument("--data-dir", metavar="DIR", help="local data: the Hub's layout, or image folders train/ and val/")
    run.add_argument("--output", metavar="DIR", default="output", help="the run is DIR/NAME/; default output")
    run.add_argument("--experiment", metavar="NAME", help="name of the run; default the name of the recipe")
    run.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="PATH",
        help="go on with the run, or with the run or checkpoint at PATH; starts it if there is none",
    )
    run.add_argument("--overwrite", action="store_true", help="start anew where a run lies already")
    run.add_argument("--track", nargs="+", default=[], metavar="NAME", help=f"log to {', '.join(TRACKERS)}")
    run.add_argument("--push-to-hub", metavar="USER/NAME", help="share the finished run on the Hub")
    run.add_argument("--threads", type=int, metavar="N", help="threads of each process on the CPU; default its cores")
    run.add_argument("--debug", action="store_true", help="show where an error came from")
    add_recipe_flags(parser)
    return parser


def print_recipes() -> None:
    """Print benchmarks and methods: a recipe is one of each."""
    print(f"BENCHMARK_METHOD, {len(list_recipes())} recipes. Methods: {', '.join(list_recipe_methods())}")
    for benchmark in list_benchmarks():
        recipe = load_recipe(f"{benchmark}_none")
        print(
            f"{benchmark:26} {recipe.dataset:26} {recipe.model:16} {recipe.epochs:5} epochs, batch {recipe.batch_size}"
        )


def _read_call(namespace: argparse.Namespace) -> tuple[Call, list[str]]:
    problems = []
    for name in namespace.track:
        if name not in TRACKERS:
            problems.append(f"--track {name}: choose from {', '.join(TRACKERS)}")
        elif find_spec(name) is None:
            problems.append(f"--track {name} needs its package: pip install 'timm-patchup[tracking]'")
    if namespace.resume and namespace.overwrite:
        problems.append("--resume and --overwrite contradict each other")
    if namespace.push_to_hub is not None and not is_repo_name(namespace.push_to_hub):
        problems.append(f"--push-to-hub is USER/NAME, got {namespace.push_to_hub!r}")
    problems += check_minimums(namespace, {"threads": 1})
    if namespace.experiment is not None and Path(namespace.experiment).name != namespace.experiment:
        problems.append(f"--experiment is a name, not a path, got {namespace.experiment!r}; --output takes the folder")
    call = Call(
        source=namespace.recipe,
        overrides=given_keys(namespace),
        output=Path(namespace.output),
        experiment=namespace.experiment,
        data_dir=namespace.data_dir,
        resume=namespace.resume,
        overwrite=namespace.overwrite,
        track=tuple(namespace.track),
        threads=namespace.threads,
        debug=namespace.debug,
        push_to_hub=namespace.push_to_hub,
    )
    return call, problems
