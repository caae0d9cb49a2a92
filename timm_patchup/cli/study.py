"""The command of the studies: run what is missing, collect what is there, print it beside the paper's numbers.

Exit codes: 0 no run failed, 1 some did, 2 the call was wrong and nothing was written, 130 stopped by Ctrl-C.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..data.source import HUB_PREFIX
from ..errors import UserError, nearest
from ..runs.folder import RunFolder
from ..study.collect import Row, check_finished, collect, is_done
from ..study.commands import Options, commands, extra_keys, run_recipe
from ..study.definition import Run, Study, list_studies, load_study
from ..study.runner import Job, Runner, last_line
from ..study.tables import comma_separated, draw, markdown, table, write_whole
from ..system.threads import share_of_cores
from .command import Parser, check_minimums, run_command

COMMAND = "study.py"


def main(argv: Sequence[str] | None = None) -> None:
    """Run a study; exit with a code and one clear line if that is not possible."""
    # Outside the runs: those have the runner's own way to stop.
    run_command(COMMAND, _main, argv, on_interrupt="stopped; run the same command again to resume")


def make_parser() -> Parser:
    """Return the parser of the flags before ``--``."""
    parser = Parser(
        prog=COMMAND,
        usage="%(prog)s --study NAME [flags] [-- flags of the training command]",
        description="Run the runs that a table of the paper needs, and put what they give beside its numbers. Stopped "
        "at any point, the same command goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("--study", metavar="NAME|FILE", help="a name of --list-studies or a YAML file")
    parser.add_argument("--list-studies", action="store_true", help="show all studies and exit")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds, from 0 on; default the study's own")
    parser.add_argument("--limit", type=int, metavar="N", help="use so many samples of each split, for a dry try")
    parser.add_argument("--output", metavar="DIR", default="studies", help="the study is DIR/NAME/; default studies")
    parser.add_argument("--data-dir", metavar="DIR", help="local data, or a folder that holds one for each data set")
    parser.add_argument(
        "--corrupted",
        metavar="DIR|hfds/OWNER/NAME",
        help="suite corruptions: ready files, not made on the fly",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; 0 only collects; default 1")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each run; default its share of the cores")
    parser.add_argument("--dry-run", action="store_true", help="print the commands that are left, one line a run")
    return parser


def _main(words: list[str]) -> int:
    own, extra = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    asked, problems = make_parser().read(own)
    if asked.list_studies:
        print_studies()
        return 0
    problems += _problems(asked)
    if problems:
        raise UserError(problems)
    study = load_study(asked.study)
    seeds = study.seeds if asked.seeds is None else asked.seeds
    options = Options(
        folder=Path(asked.output) / study.name,
        limit=asked.limit,
        data_dir=None if asked.data_dir is None else Path(asked.data_dir),
        threads=asked.threads if asked.dry_run or asked.jobs < 2 else asked.threads or share_of_cores(asked.jobs),
        extra=tuple(extra),
        corrupted=asked.corrupted,
    )
    extra_keys(options.extra)
    runs = study.runs(seeds)
    _check_evaluation(study, options, runs_here=bool(asked.jobs) and not asked.dry_run)
    _check_recipes(runs, options)
    check_finished(runs, options)
    left = [run for run in runs if not is_done(study, run, options)]
    jobs = [
        Job(run.name, commands(study, run, options), options.log(run), RunFolder(options.runs / run.name).in_use)
        for run in left
    ]
    if asked.dry_run:
        for job in jobs:
            print(" && ".join(shlex.join(command) for command in job.commands))
        return 0
    return _run(study, runs, jobs, options, asked)


def print_studies() -> None:
    """Print the name, the number of runs and the title of every study."""
    for name in list_studies():
        study = load_study(name)
        seeds = "1 seed " if study.seeds == 1 else f"{study.seeds} seeds"
        print(f"{name:16} {len(study.conditions):3} rows x {seeds}  {study.title}")


def _problems(asked: argparse.Namespace) -> list[str]:
    problems = []
    if asked.study is None:
        problems.append(f"--study is missing; there are {', '.join(list_studies())}")
    problems += check_minimums(asked, {"seeds": 1, "limit": 1, "threads": 1, "jobs": 0})
    if asked.data_dir is not None and not Path(asked.data_dir).is_dir():
        problems.append(f"--data-dir {asked.data_dir}: no such folder")
    if asked.corrupted is not None and not (asked.corrupted.startswith(HUB_PREFIX) or Path(asked.corrupted).is_dir()):
        problems.append(f"--corrupted {asked.corrupted}: no such folder; a data set of the Hub is hfds/OWNER/NAME")
    return problems


def _check_evaluation(study: Study, options: Options, *, runs_here: bool) -> None:
    """Refuse suites and values that do not exist, and missing packages: nobody waits for a training to hear that."""
    ready = options.corrupted is not None
    if ready and not any(part.suite == "corruptions" for part in study.evaluation):
        raise UserError([f"--corrupted is for suite corruptions, which {study.name} does not have"])
    if not study.evaluation:
        return
    from ..evaluation.suites import SUITES, suite_problems  # not for studies that only train: it is slow to import

    problems = []
    for part in study.evaluation:
        if part.suite not in SUITES or runs_here:
            problems += [
                f"{study.name}: {problem}" for problem in suite_problems([part.suite], {"corrupted": options.corrupted})
            ]
        known = SUITES[part.suite].values if part.suite in SUITES else ()
        for value in part.values:
            if known and value not in known:
                problems.append(f"{study.name}: suite {part.suite} has no value {value!r}{nearest(value, known)}")
    if problems:
        raise UserError(problems)


def _check_recipes(runs: Sequence[Run], options: Options) -> None:
    """Refuse a study of which any run would be refused, before the first is started."""
    problems = []
    for run in runs:
        if run.seed == 0:
            try:
                run_recipe(run, options)
            except UserError as error:
                problems += [f"{run.name}: {problem}" for problem in error.problems]
    if problems:
        raise UserError(problems[:8])


def _run(
    study: Study,
    runs: Sequence[Run],
    jobs: Sequence[Job],
    options: Options,
    asked: argparse.Namespace,
) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = len(runs) // len(study.conditions)
    done, failed = len(runs) - len(jobs), list[str]()
    command = _shown_command(study, asked, options)
    print(f"{study.name}: {len(runs)} runs, {done} done already; in {options.folder}/", flush=True)

    def ended(job: Job, code: int, seconds: float) -> None:
        nonlocal done
        if code:
            failed.append(job.name)
            print(f"failed, code {code}: {job.name}: {last_line(job.log)} (all of it: {job.log})", flush=True)
        else:
            done += 1
            print(f"[{done}/{len(runs)}] {job.name}, {seconds / 60:.1f} min", flush=True)
        _write(study, seeds, options, command, failed)

    stopped = 0
    if asked.jobs and jobs:
        stopped = Runner(asked.jobs, devices(asked.jobs), ended).run(jobs).signal
    rows = _write(study, seeds, options, command, failed)
    draw(study, rows, options.folder / "results.png")
    print("\n" + "\n".join(table(rows)))
    print(f"\n{options.folder}/: results.md, results.csv, results.png")
    if study.evaluation:
        print(f"{options.reports}/: the evaluation of each run, with its settings")
    if stopped:
        print(f"stopped with {done} of {len(runs)} runs done; go on with the same command")
        return 128 + stopped
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _write(study: Study, seeds: int, options: Options, command: str, failed: Sequence[str]) -> list[Row]:
    """Write the tables of what is there so far, and return their rows."""
    rows = collect(study, seeds, options)
    write_whole(options.folder / "results.md", markdown(study, rows, command=command, failed=failed))
    write_whole(options.folder / "results.csv", comma_separated(rows))
    return rows


def _shown_command(study: Study, asked: argparse.Namespace, options: Options) -> str:
    """Return the command for the head of a table: all that matters to the numbers, no folders."""
    words = ["python", "scripts/study.py", "--study", Path(asked.study).name]
    words += [] if asked.seeds is None else ["--seeds", str(asked.seeds)]
    words += [] if options.limit is None else ["--limit", str(options.limit)]
    if options.corrupted is not None:
        on_hub = options.corrupted.startswith(HUB_PREFIX)
        words += ["--corrupted", options.corrupted if on_hub else Path(options.corrupted).resolve().name]
    return shlex.join(words + (["--", *options.extra] if options.extra else []))


def devices(jobs: int) -> list[str]:
    """Return the GPUs to share out among the jobs: none unless there are several of both."""
    if jobs < 2:
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if count < 2 else visible.split(",")[:count] if visible else [str(i) for i in range(count)]
