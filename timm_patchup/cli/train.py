"""The training command: from flags to a recipe and a run, and to the Hub if asked.

Accelerate and the data libraries are imported only once the flags are right.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import HubError, RunError, UserError, brief
from ..recipe import list_recipes, load_recipe
from ..recipe.compose import DEFAULT, PROTOCOL, list_benchmarks, list_protocols, list_recipe_methods
from ..system.network import is_repo_name
from ..system.output import say
from .command import Parser, check_threads, empty_values, run_command
from .recipe_flags import ALLOW_IMPORTS, ALLOW_IMPORTS_HELP, add_recipe_flags, given_keys

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..training.run import RunOptions

COMMAND = "train.py"
_LONGEST_NAME = 200  # file systems allow 255 bytes, and temporary names are longer
TRACKERS = ("tensorboard", "trackio", "wandb")


def main(argv: Sequence[str] | None = None) -> None:
    """Train a recipe and exit."""
    run_command(
        COMMAND,
        _run,
        argv,
        on_interrupt="stopped by Ctrl-C outside of training: no checkpoint was written",
        on_file_error="earlier checkpoints are kept: resume with --resume once that is fixed",
    )


def make_parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser of all flags; its help shows the values of the recipe that the words name."""
    parser = Parser(
        prog=COMMAND,
        usage="%(prog)s [--recipe NAME|FILE] [flags]",
        description="Train a recipe. Every key of a recipe is a flag, too.",
        allow_abbrev=False,
        examples=[
            "python scripts/train.py                                    # the default, two minutes on a CPU",
            "python scripts/train.py --recipe fashion_mini_cutmix --epochs 5 --experiment short",
            "python scripts/train.py --resume output/short",
            "accelerate launch scripts/train.py --recipe imagenet_hard_patchup    # several GPUs, as configured",
        ],
    )
    recipe = parser.add_argument_group("recipe selection")
    recipe.add_argument(
        "--recipe", metavar="NAME|FILE", help=f"a name from --list-recipes or a YAML file (default: {DEFAULT})"
    )
    recipe.add_argument(
        "--protocol",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"replace keys of the recipe by the keys of a protocol: {', '.join(list_protocols())}",
    )
    recipe.add_argument(ALLOW_IMPORTS, action="store_true", help=ALLOW_IMPORTS_HELP)
    recipe.add_argument("--list-recipes", action="store_true", help="list all recipes and exit")
    recipe.add_argument("--show-recipe", action="store_true", help="print the resolved recipe as YAML and exit")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--data-dir",
        metavar="DIR",
        help="local data: the Hub's layout, or image folders train/ and val/ (default: Hub)",
    )
    run.add_argument("--output", metavar="DIR", default="output", help="folder of all runs (default: output)")
    run.add_argument("--experiment", metavar="NAME", help="name of the run (default: the name of the recipe)")
    run.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="PATH",
        help="resume this run, or start it if there is none; with PATH, resume the run or checkpoint there",
    )
    run.add_argument("--overwrite", action="store_true", help="start again if the folder has a run")
    run.add_argument("--push-to-hub", metavar="USER/NAME", help="export the finished run and push it to the Hub")
    run.add_argument(
        "--track", nargs="+", default=[], metavar="NAME", help=f"log to one or more of: {', '.join(TRACKERS)}"
    )
    run.add_argument("--threads", type=int, metavar="N", help="CPU threads per process (default: its share of cores)")
    run.add_argument("--debug", action="store_true", help="print the traceback of an error")
    add_recipe_flags(parser, words)
    return parser


def print_recipes() -> None:
    """Print benchmarks and methods: a recipe is one of each."""
    say(f"BENCHMARK_METHOD, {len(list_recipes())} recipes. Methods: {', '.join(list_recipe_methods())}")
    for benchmark in list_benchmarks():
        recipe = load_recipe(f"{benchmark}_none")
        say(f"{benchmark:26} {recipe.dataset:26} {recipe.model:16} {recipe.epochs:5} epochs, batch {recipe.batch_size}")


def _run(words: Sequence[str]) -> int:
    given, problems = make_parser(words).read(words)
    if given.list_recipes:
        print_recipes()
        return 0
    problems += _problems(given)
    try:
        recipe = load_recipe(given.recipe or DEFAULT, given_keys(given), allow_imports=given.allow_imports)
    except UserError as error:
        raise UserError(problems + error.problems) from None
    if problems:
        raise UserError(problems)
    if given.show_recipe:
        say(*recipe.to_yaml().splitlines())
        return 0
    from ..training.run import run  # imports Accelerate and the data libraries, which take seconds

    folder = run(recipe, _options(given))
    if given.push_to_hub is not None:
        _push(folder, given.push_to_hub)
    return 0


def _problems(given: argparse.Namespace) -> list[str]:
    problems = []
    for name in given.track:
        if name not in TRACKERS:
            problems.append(f"--track must be one or more of {', '.join(TRACKERS)}, got {brief(name)}")
        elif find_spec(name) is None:
            problems.append(f"--track {name} needs its package: pip install 'timm-patchup[tracking]'")
    if given.resume and given.overwrite:
        problems.append("--resume and --overwrite exclude each other: give one of them")
    if given.resume and given.recipe is None and hasattr(given, PROTOCOL):
        problems.append("--protocol with --resume needs the --recipe it changes; without both, the run takes its own")
    if given.push_to_hub is not None and not is_repo_name(given.push_to_hub):
        problems.append(f"--push-to-hub must be USER/NAME, got {brief(given.push_to_hub)}")
    problems += check_threads(given)
    problems += empty_values(given, ("recipe", "experiment", "output", "data_dir", "resume"))
    if given.experiment:
        problems += _name_problems(given.experiment)
    return problems


def _name_problems(name: str) -> list[str]:
    """Return why a name cannot be the name of a folder."""
    if Path(name).name != name or name == "..":
        return [f"--experiment must be a name and not a path, got {brief(name, 80)}; see --output"]
    if len(name.encode()) > _LONGEST_NAME:
        return [f"--experiment must be a name of at most {_LONGEST_NAME} bytes, got {len(name.encode())}"]
    if not name.isprintable():
        return [f"--experiment must be a name of printable characters, got {brief(name)}"]
    return []


def _options(given: argparse.Namespace) -> "RunOptions":
    from ..training.run import RunOptions

    return RunOptions(
        output=Path(given.output),
        experiment=given.experiment or _default_experiment(given.recipe),
        data_dir=given.data_dir,
        resume=given.resume if isinstance(given.resume, bool) else Path(given.resume),
        overwrite=given.overwrite,
        track=tuple(given.track),
        threads=given.threads,
        given=given.recipe is not None,
        overrides={name: value for name, value in given_keys(given).items() if name != PROTOCOL},
        allow_imports=given.allow_imports,
    )


def _default_experiment(source: str | None) -> str:
    if source is None:
        return DEFAULT
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        return source
    return path.resolve().parent.name if path.name == "recipe.yaml" else path.stem


def _push(folder: "RunFolder", repo: str) -> None:
    """Export a finished run and push it, on the main process; a failure leaves the run as it is."""
    from accelerate import PartialState

    from ..hub import export, push
    from .push import EXPORT

    if not PartialState().is_main_process:
        return
    try:
        say(push(export(folder.path, folder.path / EXPORT), repo))
    except (HubError, OSError) as error:
        later = f"python -m timm_patchup.hub {folder.path} --repo {repo}"
        raise RunError(f"the run is finished, but not on the Hub: {error}. To push it later: {later}") from error
