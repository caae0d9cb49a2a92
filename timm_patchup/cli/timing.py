"""The timing command of a study, ``python -m timm_patchup.cli.timing``.

It has the flags of the training command, so that a study can start either with the same words.
"""

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..recipe import load_recipe
from ..runs.folder import RunFolder
from ..study.timing import REFERENCE, measure
from ..system.output import say
from .command import run_command
from .recipe_flags import given_keys
from .train import make_parser

COMMAND = "timing.py"


def main(argv: Sequence[str] | None = None) -> None:
    """Time the updates of a recipe, write results.json and exit."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped; nothing was written, run the command again")


def _run(words: Sequence[str]) -> int:
    parser = make_parser()
    parser.prog = COMMAND
    given, problems = parser.read(words)
    if given.recipe is None or given.experiment is None:
        problems.append("--recipe and --experiment are missing: scripts/study.py --study training_time gives them")
    if problems:
        raise UserError(problems)
    keys = given_keys(given)
    recipe = load_recipe(given.recipe, keys, allow_imports=given.allow_imports)
    shared = {name: value for name, value in keys.items() if not name.startswith("mix")}
    reference = load_recipe(given.recipe, {**shared, "mix": REFERENCE})
    folder = RunFolder(Path(given.output) / given.experiment)
    if folder.state() != "finished":
        results = measure(recipe, reference, threads=given.threads)
        folder.begin(recipe, folder.name)
        folder.write_results(results)
    ratio = folder.results()["time_ratio"]
    say(f"one update with {given.recipe} takes {ratio:.2f}x as long as with {REFERENCE}")
    return 0


if __name__ == "__main__":
    main()
