"""The command: flags to an evaluation, and every way it can fail to one clear line and an exit code.

Exit codes: 0 done, 1 it failed, 2 the call was wrong, 130 stopped by Ctrl-C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .command import Parser, check_minimums, run_command

if TYPE_CHECKING:
    from ..evaluation.bench import Options

COMMAND = "evaluate.py"
SUITE_NAMES = "clean,affine,fgsm,activations,geometry,corruptions,attacks"


@dataclass(frozen=True)
class Call:
    """What was asked for."""

    models: tuple[str, ...]
    suites: tuple[str, ...]
    data: str | None
    data_dir: str | None
    limit: int | None
    batch_size: int
    output: Path
    force: bool
    baseline: str | None
    threads: int | None
    options: "Options"


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate models; exit with a code and one clear line if that is not possible."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped; finished results are kept, run the same command again")


def _run(words: Sequence[str]) -> int:
    call = read_call(words)
    from accelerate import PartialState

    from ..evaluation.run import run  # torch and the data libraries are needed from here on

    run(call)
    PartialState().destroy_process_group()  # a process that ends with its group's threads alive may be aborted
    return 0


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        prog=COMMAND, description="Measure classifiers as the paper does, and write a report.", allow_abbrev=False
    )
    parser.add_argument(
        "--model",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODEL",
        help="folder of a run, hf-hub:USER/NAME, local-dir:DIR in timm's layout, or a name of timm; several compare",
    )
    parser.add_argument("--suite", default="clean", metavar="NAMES", help=f"of {SUITE_NAMES}, or all; default clean")
    parser.add_argument(
        "--data", metavar="NAME", help="a benchmark, recipe or data set of the recipes; default the run's"
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="local data: the Hub's layout, or image folders train/ and val/"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="take so many test samples, spread over the classes")
    parser.add_argument("--output", default="report", metavar="DIR", help="folder of the report; default report")
    parser.add_argument("--force", action="store_true", help="measure again what results.json holds already")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of angles, corruptions, pairs and attacks")
    parser.add_argument("--batch-size", type=int, default=100, metavar="N", help="images of a process at a time")
    parser.add_argument("--baseline", metavar="NAME", help="corruptions: the model that mCE is relative to")
    parser.add_argument(
        "--corrupted",
        metavar="DIR|hfds/OWNER/NAME",
        help="corruptions: files that are ready instead of made on the fly",
    )
    parser.add_argument(
        "--eps-space", default="pixels", choices=("pixels", "normalised"), help="fgsm: the space of eps; default pixels"
    )
    parser.add_argument("--attack-steps", type=int, default=7, metavar="N", help="attacks: steps of each; default 7")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of each process on the CPU; default its cores"
    )
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def read_call(words: Sequence[str]) -> Call:
    """Read the flags.

    Raises:
        UserError: everything that is wrong with them.
    """
    parser = make_parser()
    given, problems = parser.read(words)
    if not given.model:
        problems.append("--model is missing: the folder of a run, hf-hub:USER/NAME, local-dir:DIR or a name of timm")
    problems += check_minimums(given, {"limit": 1, "batch_size": 1, "threads": 1, "seed": 0, "attack_steps": 1})
    if given.seed >= 2**63:
        problems.append(f"--seed must be below 2**63, got {given.seed}")
    suites = SUITE_NAMES.split(",") if given.suite == "all" else [name.strip() for name in given.suite.split(",")]
    for name in ("baseline", "corrupted"):
        if getattr(given, name) is not None and "corruptions" not in suites:
            problems.append(f"--{name} is for suite corruptions, --suite is {given.suite}")
    if problems:
        raise UserError(problems)
    from ..evaluation.bench import Options

    return Call(
        models=tuple(given.model),
        suites=tuple(dict.fromkeys(suites)),
        data=given.data,
        data_dir=given.data_dir,
        limit=given.limit,
        batch_size=given.batch_size,
        output=Path(given.output),
        force=given.force,
        baseline=given.baseline,
        threads=given.threads,
        options=Options(
            seed=given.seed,
            eps_space=given.eps_space,
            attack_steps=given.attack_steps,
            corrupted=given.corrupted,
        ),
    )
