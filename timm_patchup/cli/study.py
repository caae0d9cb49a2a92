"""The study command: run what is missing, collect all results, print them next to the paper's numbers."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..evaluation.suites import SUITES, study_options, suite_problems
from ..runs.folder import RunFolder
from ..study.collect import StudyRow, collect, damaged_runs, is_done, refuse_other_runs, seed_rows
from ..study.comparisons import comparisons
from ..study.csv_files import comparisons_csv, results_csv
from ..study.definition import Run, Study, list_studies, load_study
from ..study.figures import study_figures
from ..study.options import StudyOptions, run_recipe
from ..study.page import results_page, results_table
from ..study.paper import require_tables
from ..study.runner import Job, Runner, last_line
from ..study.seeds import read_seeds, write_seeds
from ..system.files import make_folder, refuse_folders, write_whole
from ..system.locks import LOCK, locked
from ..system.output import say
from ..system.threads import share_of_cores
from .command import Parser, check_minimums, check_threads, empty_values, print_errors, run_command
from .evaluate import add_options
from .recipe_flags import ALLOW_IMPORTS, ALLOW_IMPORTS_HELP
from .study_commands import commands, parse_training_flags

COMMAND = "study.py"
SEEDS = "seeds.csv"


def main(argv: Sequence[str] | None = None) -> None:
    """Run a study and exit."""
    # While runs are active, the runner handles Ctrl-C.
    resume = "run the same command again to resume"
    run_command(COMMAND, _main, argv, on_interrupt=f"stopped; {resume}", on_file_error=f"fix that, then {resume}")


def make_parser() -> Parser:
    """Return the parser of the flags before ``--``."""
    parser = Parser(
        prog=COMMAND,
        usage="%(prog)s --study NAME [flags] [-- flags of the training command]",
        description="Run the runs behind a table of the paper, and put the results next to its numbers. If it was\n"
        "stopped, run the same command again to resume.",
        allow_abbrev=False,
        examples=[
            "python scripts/study.py --study fashion_mini                     # small enough for two cores",
            "python scripts/study.py --study cifar --dry-run > commands.txt   # one line per run, for a scheduler",
            "python scripts/study.py --study cifar --jobs 0                   # tables of the finished runs",
            "python scripts/study.py --study cifar --limit 2000 -- --epochs 2",
        ],
    )
    chosen = parser.add_argument_group("study")
    chosen.add_argument("--study", metavar="NAME|FILE", help="a name from --list-studies or a YAML file")
    chosen.add_argument("--list-studies", action="store_true", help="list all studies and exit")
    chosen.add_argument("--seeds", type=int, metavar="N", help="number of seeds (default: the study's)")
    chosen.add_argument(ALLOW_IMPORTS, action="store_true", help=ALLOW_IMPORTS_HELP)
    data = parser.add_argument_group("data")
    data.add_argument("--limit", type=int, metavar="N", help="use N samples per split, for a quick trial run")
    data.add_argument("--data-dir", metavar="DIR", help="local data, or a folder with one subfolder per dataset")
    running = parser.add_argument_group("run")
    running.add_argument("--output", metavar="DIR", default="studies", help="folder of all studies (default: studies)")
    running.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time, 0 to only collect results (default: 1)"
    )
    running.add_argument("--threads", type=int, metavar="N", help="threads per run (default: its share of the cores)")
    running.add_argument(
        "--seeds-from",
        metavar="FILE",
        help="a CSV file with the values of each seed: its rows count as done, even if the runs are gone, and new ones "
        "are added to it (default: write seeds.csv, and look at the runs)",
    )
    running.add_argument("--dry-run", action="store_true", help="print the commands of the missing runs, one per line")
    running.add_argument("--debug", action="store_true", help="print the traceback of an error")
    for suite in SUITES.values():
        own = study_options([suite.name]).values()
        add_options(parser, suite, {option: option.default_in_study for option in own})
    return parser


def _main(words: list[str]) -> int:
    own, extra = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    given, problems = make_parser().read(own)
    if given.list_studies:
        print_studies()
        return 0
    problems += _problems(given)
    if problems:
        raise UserError(problems)
    study = load_study(given.study)
    require_tables(study)
    options = StudyOptions(
        folder=Path(given.output) / study.name,
        limit=given.limit,
        data_dir=None if given.data_dir is None else Path(given.data_dir),
        threads=given.threads if given.dry_run or given.jobs < 2 else given.threads or share_of_cores(given.jobs),
        overrides=parse_training_flags(extra),
        given={name: getattr(given, name) for name in study_options()},
        finished=read_seeds(Path(given.seeds_from)) if given.seeds_from and Path(given.seeds_from).is_file() else {},
        allow_imports=given.allow_imports,
    )
    runs = study.runs(given.seeds)
    _require_usable_evaluation(study, options, runs_here=bool(given.jobs) and not given.dry_run)
    _refuse_invalid_recipes(runs, options)
    refuse_other_runs(study, runs, options)
    left = [run for run in runs if not is_done(study, run, options)]
    jobs = [
        Job(run.name, commands(study, run, options, extra), options.log(run), RunFolder(options.runs / run.name).in_use)
        for run in left
    ]
    if given.dry_run:
        for job in jobs:
            say(" && ".join(shlex.join(command) for command in job.commands))
        return 0
    make_folder(options.folder)
    busy = f"another study.py is at work in {options.folder}: wait for it; its results.md has the finished runs"
    with locked(options.folder / LOCK, busy=busy):
        return _run(study, runs, jobs, options, given, extra)


def print_studies() -> None:
    """Print name, number of runs, title and place in the paper of every study, and what makes its other figures."""
    for name in list_studies():
        study = load_study(name)
        seeds = "1 seed " if study.seeds == 1 else f"{study.seeds} seeds"
        shows = f" ({study.shows})" if study.shows else ""
        say(f"{name:16} {len(study.conditions):3} rows x {seeds}  {study.title}{shows}")
    say("without training: figure 1, scripts/visualize.py; figures 7, 8 and 9, scripts/mask_figures.py")


def _problems(given: argparse.Namespace) -> list[str]:
    problems = []
    if given.study is None:
        problems.append(f"--study is missing: choose from {', '.join(list_studies())}")
    lowest = {"seeds": 1, "limit": 1, "jobs": 0}
    lowest |= {name: option.low for name, option in study_options().items() if option.low is not None}
    problems += check_minimums(given, lowest)
    problems += check_threads(given)
    problems += empty_values(given, ("study", "data_dir", "output", "seeds_from", *study_options()))
    if given.data_dir is not None and not Path(given.data_dir).is_dir():
        problems.append(f"--data-dir {given.data_dir}: no such folder")
    if given.seeds_from is not None and not Path(given.seeds_from).parent.is_dir():
        problems.append(f"--seeds-from {given.seeds_from}: no such folder")
    return problems


def _require_usable_evaluation(study: Study, options: StudyOptions, *, runs_here: bool) -> None:
    """Refuse options of other suites, values of options that cannot be used, and missing packages."""
    names, values = list(dict.fromkeys(part.suite for part in study.evaluation)), options.of_suites
    for suite in SUITES.values():
        for name, option in study_options([suite.name]).items():
            if suite.name not in names and values[name] != option.default_in_study:
                raise UserError(f"{option.flag} is for suite {suite.name}, which {study.name} does not have")
    for name in names:
        if (check := SUITES[name].check_options) is not None:
            check(values, ())
    if runs_here and (problems := suite_problems(names, values)):
        raise UserError([f"{study.name}: {problem}" for problem in problems])


def _refuse_invalid_recipes(runs: Sequence[Run], options: StudyOptions) -> None:
    """Refuse a study with a run that would be refused, before the first one starts."""
    problems = []
    for run in runs:
        if run.seed == runs[0].seed:  # the first of each condition
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
    options: StudyOptions,
    given: argparse.Namespace,
    extra: Sequence[str],
) -> int:
    done, failed = len(runs) - len(jobs), list[str]()
    path = Path(given.seeds_from or options.folder / SEEDS)
    refuse_folders([path, *(options.folder / name for name in ("results.md", "results.csv", "comparisons.csv"))])
    known = read_seeds(path) if path.is_file() else {}
    new = {run.name for run in runs if RunFolder(options.runs / run.name).state() == "new"}
    made: dict[str, float | None] = {}  # CPU minutes of what ends here; what was resumed took longer
    command = _shown_command(given, options, extra)
    say(f"{study.name}: {len(runs)} runs, {done} already done; in {options.folder}/")

    def write() -> list[StudyRow]:
        nonlocal known
        rows = collect(study, runs, options)
        known = seed_rows(study, runs, options, known, made)
        write_seeds(path, known.values())
        found = comparisons(study, rows)
        write_whole(options.folder / "results.md", results_page(study, rows, found, command=command, failed=failed))
        write_whole(options.folder / "results.csv", results_csv(rows))
        if study.reference is not None:
            write_whole(options.folder / "comparisons.csv", comparisons_csv(found))
        return rows

    def ended(job: Job, code: int, seconds: float, cpu_seconds: float) -> None:
        nonlocal done
        if code:
            failed.append(job.name)
            say(f"failed with code {code}: {job.name}: {last_line(job.log)} (log: {job.log})")
        else:
            done += 1
            say(f"[{done}/{len(runs)}] {job.name}, {seconds / 60:.1f} min")
            made[job.name] = cpu_seconds / 60 if job.name in new else None
        write()

    stopped = 0
    if given.jobs and jobs:
        stopped = Runner(given.jobs, devices(given.jobs), ended).run(jobs).signal
    rows = write()
    figures = study_figures(study, rows)
    for name, content in figures.items():
        write_whole(options.folder / name, content)
    damaged = damaged_runs(runs, options)
    print_errors(COMMAND, damaged, 1)
    say("", *results_table(rows).split("\n"))
    files = [
        file for file in ("results.md", "results.csv", "comparisons.csv", SEEDS) if (options.folder / file).is_file()
    ]
    say("", f"{options.folder}/: {', '.join((*files, *figures))}")
    if study.evaluation:
        say(f"{options.reports}/: the evaluation of each run")
    if stopped:
        say(f"stopped with {done} of {len(runs)} runs done; run the same command again to resume")
        return 128 + stopped
    if failed:
        say(f"{len(failed)} of {len(runs)} runs failed: " + ", ".join(failed), stream=sys.stderr)
    return 1 if failed or damaged else 0


def _shown_command(given: argparse.Namespace, options: StudyOptions, extra: Sequence[str]) -> str:
    """Return the command for the head of a table: what affects the numbers, without folders."""
    words = ["python", "scripts/study.py", "--study", Path(given.study).name]
    words += [] if given.seeds is None else ["--seeds", str(given.seeds)]
    words += [] if options.limit is None else ["--limit", str(options.limit)]
    for name, option in study_options().items():
        value = options.of_suites[name]
        if value != option.default_in_study:
            words += [option.flag, Path(value).resolve().name if Path(str(value)).is_dir() else str(value)]
    return shlex.join(words + (["--", *map(_without_folder, extra)] if extra else []))


def _without_folder(word: str) -> str:
    """Return a flag or a value with only the name of a file that is given by its whole path."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{flag}{equals}{Path(value).name if Path(value).is_absolute() else value}"


def devices(jobs: int) -> list[str]:
    """Return the GPUs to distribute among the jobs; none unless there are several of both."""
    if jobs < 2:
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if count < 2 else visible.split(",")[:count] if visible else [str(i) for i in range(count)]
