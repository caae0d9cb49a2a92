"""The command ``evaluate.py``: its flags, and the call they make. The flags of a suite come from its options."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation.run import EvalCall, run
from ..evaluation.suite import Option, Suite
from ..evaluation.suites import SUITES, parse_suites
from .command import Parser, check_minimums, check_threads, empty_values, run_command

COMMAND = "evaluate.py"


def main(argv: Sequence[str] | None = None) -> None:
    """Evaluate models and exit."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped; finished results are kept, run the same command again")


def _run(words: Sequence[str]) -> int:
    from accelerate import PartialState

    run(read_call(words))
    PartialState().destroy_process_group()  # a process that exits with its group's threads alive may be aborted
    return 0


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        prog=COMMAND,
        usage="%(prog)s --model MODEL [MODEL ...] [flags]",
        description="Measure classifiers as the paper does, and write a report.",
        allow_abbrev=False,
        examples=[
            "python scripts/evaluate.py --model output/fashion_mini_hard_patchup --suite clean,affine,fgsm",
            "python scripts/evaluate.py --model output/NONE output/PATCHUP --suite corruptions --baseline NONE",
            "python scripts/evaluate.py --model hf-hub:USER/NAME --data cifar10 --limit 200",
        ],
    )
    group = parser.add_argument_group("what to evaluate")
    group.add_argument(
        "--model",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODEL",
        help="run folders, exports, USER/NAME on the Hub, or timm model names; several are compared",
    )
    group.add_argument(
        "--suite",
        default="clean",
        metavar="NAMES",
        help=f"comma-separated, of {', '.join(SUITES)}, or all (default: clean)",
    )
    group.add_argument(
        "--data",
        metavar="NAME",
        help="test on this dataset, benchmark or recipe (default: the data of the models' recipes)",
    )
    group.add_argument(
        "--data-dir", metavar="DIR", help="local data: the Hub's layout, or image folders train/ and val/"
    )
    group.add_argument("--limit", type=int, metavar="N", help="use N test samples with unchanged class proportions")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random choices (default: 0)")
    group = parser.add_argument_group("how to run")
    group.add_argument("--output", default="report", metavar="DIR", help="folder of the report (default: report)")
    group.add_argument("--force", action="store_true", help="measure again what results.json already contains")
    group.add_argument(
        "--batch-size", type=int, default=100, metavar="N", help="images per batch and process (default: 100)"
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads per process (default: its share of the cores)"
    )
    group.add_argument("--debug", action="store_true", help="print the traceback of an error")
    for suite in SUITES.values():
        add_options(parser, suite, {option: option.default for option in suite.options})
    return parser


def read_call(words: Sequence[str]) -> EvalCall:
    """Read the flags.

    Raises:
        UserError: everything that is wrong with them.
    """
    given, problems = make_parser().read(words)
    options = {option.name: option for suite in SUITES.values() for option in suite.options}
    suites = parse_suites(given.suite)
    if not given.model:
        problems.append("--model is required: a run folder, an export, USER/NAME on the Hub or a name of timm")
    lowest = {"limit": 1, "batch_size": 1, "seed": 0}
    problems += check_threads(given)
    problems += empty_values(given, ("data", "data_dir", "output"))
    problems += ["--model is empty: give a run, an export or a name"] * ("" in given.model)
    problems += check_minimums(given, lowest | {o.name: o.low for o in options.values() if o.low is not None})
    if given.seed >= 2**63:
        problems.append(f"--seed must be below 2**63, got {given.seed}")
    for suite in SUITES.values():
        for option in suite.options:
            is_given = option.default is None and getattr(given, option.name) is not None
            if is_given and suite.name not in suites:
                problems.append(f"{option.flag} belongs to suite {suite.name}, but --suite is {given.suite}")
    if problems:
        raise UserError(problems)
    return EvalCall(
        models=tuple(given.model),
        suites=suites,
        data=given.data,
        data_dir=given.data_dir,
        limit=given.limit,
        batch_size=given.batch_size,
        output=Path(given.output),
        force=given.force,
        seed=given.seed,
        threads=given.threads,
        options={name: getattr(given, name) for name in options},
    )


def add_options(parser: argparse.ArgumentParser, suite: Suite, defaults: Mapping[Option, Any]) -> None:
    """Add flags for options of a suite, with these defaults."""
    if defaults:
        group = parser.add_argument_group(f"suite {suite.name}")
        for option, default in defaults.items():
            group.add_argument(
                option.flag,
                type=option.type,
                default=default,
                choices=option.choices,
                metavar=option.metavar,
                help=option.help,
            )
