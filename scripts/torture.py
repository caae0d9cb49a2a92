"""Try to break the package, and print a table of what held: ``python scripts/torture.py --part signals --trials 100``.

Runs are stopped by signals at injected points and random moments, killed, damaged, starved of disk and started twice;
each is resumed and must end bit for bit as a run that nothing has disturbed. Wrong calls must end in one clear line,
with exit code 2 and nothing written. Commands run in forks of this process, which has everything imported, so that a
trial takes about a second; ``tests/training`` has the short version.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from timm_patchup.cli import evaluate, push, study, train
from timm_patchup.evaluation import run as _evaluation_run  # noqa: F401, imported before the forks
from timm_patchup.runs import curves as _curves  # noqa: F401
from timm_patchup.runs.checkpoint import Checkpoints
from timm_patchup.runs.folder import RunFolder
from timm_patchup.system.files import checksum
from timm_patchup.training import run as _training_run  # noqa: F401
from timm_patchup.training.learner import Learner
from timm_patchup.training.loop import Trainer

RUN = ["--limit", "100", "--batch-size", "20", "--epochs", "2", "--threads", "1", "--checkpoint-steps", "3"]
SAME = ("model.safetensors", "summary.csv", "results.json")
COMMANDS = {"train": train.main, "evaluate": evaluate.main, "push": push.main, "study": study.main}
POINTS = [
    (Accelerator, "gather"),
    (Learner, "update"),
    (Learner, "state_dict"),
    (Trainer, "_evaluate"),
    (Trainer, "_asked_to_stop"),
    (Trainer, "_end_epoch"),
    (Checkpoints, "save"),
    (Checkpoints, "save_best"),
    (RunFolder, "write_summary"),
    (RunFolder, "copy_in"),
]
NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
SECONDS = 120.0


@dataclass
class Tally:
    """One row of the table: how many trials, and what went wrong in how many of them."""

    name: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1

    def fail(self, what: str) -> None:
        self.failures.append(what)
        print(f"FAILED {self.name}: {what}", file=sys.stderr, flush=True)

    def row(self) -> str:
        notes = ", ".join(f"{count} {what}" for what, count in sorted(self.notes.items()))
        return f"| {self.name} | {self.trials} | {len(self.failures)} | {notes} |"


# Processes


class Forked:
    """A command in a fork, in a session of its own, with its output in files."""

    def __init__(
        self,
        command: str,
        words: Sequence[object],
        folder: Path,
        *,
        before: Callable[[], None] = lambda: None,
        variables: dict[str, str] | None = None,
        tag: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / f"out{tag}.txt", folder / f"err{tag}.txt"
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_command(command, [str(word) for word in words], folder, before, variables or {})

    def _be_command(
        self, command: str, words: list[str], folder: Path, before: Callable[[], None], variables: dict[str, str]
    ) -> None:
        code = 70
        try:
            os.setsid()
            for path, target in ((self.out, 1), (self.err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)
            os.environ.update(variables)
            os.chdir(folder)
            before()
            COMMANDS[command](words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            _end_workers()
            os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = SECONDS) -> int | None:
        """Return the exit code, None if the command hangs; then it is killed."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if self.code is None:
            self.signal(signal.SIGKILL, group=True)
            os.waitpid(self.pid, 0)
        return self.code

    def signal(self, number: int, *, group: bool) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number) if group else os.kill(self.pid, number)

    def text(self) -> str:
        return self.err.read_text(errors="replace")


def _end_workers() -> None:
    """End loader processes as an interpreter that exits does."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)


def start_training(
    folder: Path, words: Sequence[object], *, processes: int, before: Callable[[], None] = lambda: None
) -> list[Forked]:
    """Start a training with one process or two."""
    flags = [*RUN, "--output", folder, "--experiment", "a", *words]
    if processes == 1:
        return [Forked("train", flags, folder, before=before)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        Forked(
            "train",
            flags,
            folder,
            before=before if rank == 0 or before is _nothing else lambda: None,
            tag=str(rank),
            variables={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "ACCELERATE_USE_CPU": "true",
            },
        )
        for rank in range(processes)
    ]


def _nothing() -> None:
    pass


def finish(processes: Sequence[Forked]) -> list[int | None]:
    return [process.wait() for process in processes]


def begun(folder: Path, started: Sequence[Forked]) -> bool:
    """Wait until the run has begun; return whether it is still going on."""
    end = time.monotonic() + SECONDS
    while not (folder / "a" / "recipe.yaml").is_file() and time.monotonic() < end:
        if all(process.poll() is not None for process in started):
            return False
        time.sleep(0.005)
    return True


def digests(folder: Path) -> dict[str, str]:
    return {name: checksum(folder / "a" / name) for name in SAME if (folder / "a" / name).is_file()}


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        yield Path(folder)


@cache
def undisturbed(processes: int) -> tuple[dict[str, str], float]:
    """Return the digests of a run that nothing disturbs, and its seconds; workers change neither."""
    with scratch() as folder:
        started = start_training(folder, [], processes=processes)
        begun(folder, started)
        start = time.monotonic()
        codes = finish(started)
        assert codes == [0] * processes, [process.text() for process in started]
        return digests(folder), time.monotonic() - start


# Signals and kills


def send_at(kind: type, name: str, call: int, number: int) -> Callable[[], None]:
    """Return a function that makes this process signal itself at the given call of a method, during the training."""

    def prepare() -> None:
        original: Callable[..., Any] = getattr(kind, name)
        seen = 0

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            training = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            seen += training
            now = training and seen == call
            early = random.Random(call).random() < 0.5
            if now and early:
                os.kill(os.getpid(), number)
            result = original(*args, **kwargs)
            if now and not early:
                os.kill(os.getpid(), number)
            return result

        setattr(kind, name, wrapped)

    return prepare


def signals(trials: int, chooser: random.Random) -> list[Tally]:
    tallies = []
    for processes, workers in ((1, 0), (1, 2), (2, 0), (2, 2)):
        for way in ("at injected points", "at random moments, to the group"):
            tallies.append(Tally(f"signals {way}, {_kind(processes, workers)}"))
    per_row = [trials // len(tallies) + (row < trials % len(tallies)) for row in range(len(tallies))]
    for row, tally in enumerate(tallies):
        processes, workers = ((1, 0), (1, 2), (2, 0), (2, 2))[row // 2]
        words = ["--workers", workers]
        reference, seconds = undisturbed(processes)
        for _ in range(per_row[row]):
            with scratch() as folder:
                _one_signal(tally, folder, words, processes, chooser, reference, seconds, injected=row % 2 == 0)
    return tallies


def _one_signal(
    tally: Tally,
    folder: Path,
    words: Sequence[object],
    processes: int,
    chooser: random.Random,
    reference: dict[str, str],
    seconds: float,
    *,
    injected: bool,
) -> None:
    tally.trials += 1
    number = chooser.choice(NUMBERS)
    before: Callable[[], None] = _nothing
    if injected:
        kind, name = chooser.choice(POINTS)
        before = send_at(kind, name, chooser.randint(1, 3), number)
    started = start_training(folder, words, processes=processes, before=before)
    if not injected and begun(folder, started):
        time.sleep(chooser.random() * seconds)
        for process in started if chooser.random() < 0.5 else started[-1:]:
            process.signal(number, group=True)
    codes = finish(started)
    text = "".join(process.text() for process in started)
    finished = (folder / "a" / "results.json").is_file()
    name = signal.Signals(number).name
    if None in codes:
        tally.fail(f"hung after {name}: {text[-300:]}")
    elif "Traceback" in text:
        tally.fail(f"traceback after {name}: {text[-300:]}")
    elif codes == [0] * processes and finished:
        tally.note("finished before it was heard")
    elif set(codes) == {128 + number} and f"stopped by {name}; checkpoint step-" in text:
        tally.note("stopped with a checkpoint")
    elif not (folder / "a" / "checkpoints").is_dir() or not _trained(folder):
        tally.note("ended before the training")
    else:
        tally.fail(f"lost: {name}, codes {codes}: {text[-300:]}")
    _resume_and_compare(tally, folder, words, processes, reference)


def _trained(folder: Path) -> bool:
    return any((folder / "a" / "checkpoints").glob("step-*"))


def _kind(processes: int, workers: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}, {workers} workers"


def _resume_and_compare(
    tally: Tally, folder: Path, words: Sequence[object], processes: int, reference: dict[str, str]
) -> None:
    started = start_training(folder, [*words, "--resume"], processes=processes)
    codes = finish(started)
    text = "".join(process.text() for process in started)
    if codes != [0] * processes or "Traceback" in text:
        tally.fail(f"no resume: codes {codes}: {text[-300:]}")
    elif (found := digests(folder)) != reference:
        tally.fail(f"differs: {[name for name in SAME if found.get(name) != reference[name]]}")


def kills(trials: int, chooser: random.Random) -> list[Tally]:
    kinds = ((1, 0), (1, 2), (2, 0))
    tallies = [Tally(f"kill -9 at random moments, {_kind(*kind)}") for kind in kinds]
    for row, (tally, (processes, workers)) in enumerate(zip(tallies, kinds)):
        words = ["--workers", workers]
        reference, seconds = undisturbed(processes)
        for _ in range(trials // 3 + (row < trials % 3)):
            with scratch() as folder:
                tally.trials += 1
                started = start_training(folder, words, processes=processes)
                if begun(folder, started):
                    time.sleep(chooser.random() * seconds)
                for process in started:
                    process.signal(signal.SIGKILL, group=True)
                codes = finish(started)
                tally.note("killed" if -signal.SIGKILL in codes else "finished before")
                _resume_and_compare(tally, folder, words, processes, reference)
    return tallies


# Damage and disks


def damage(trials: int, chooser: random.Random) -> list[Tally]:
    """Damage every file of a stopped run and resume it; damage every file of a finished one and export it."""
    resumed, exported = Tally("damaged files of a stopped run, resumed"), Tally("damaged files of a finished run, read")
    reference, _ = undisturbed(1)
    with scratch() as folder:
        stop = send_at(Learner, "update", 8, signal.SIGTERM)
        assert finish(start_training(folder, [], processes=1, before=stop)) == [143]
        stopped = folder / "a"
        files = sorted(path.relative_to(stopped) for path in stopped.rglob("*") if path.is_file())
        cases = [(name, how) for name in files if name.name != ".lock" for how in WAYS]
        for name, how in _some(cases, trials // 2, chooser):
            with scratch() as copy:
                shutil.copytree(stopped, copy / "a")
                WAYS[how](copy / "a" / name)
                _resume_damaged(resumed, copy, f"{name} {how}", reference)
    with scratch() as folder:
        assert finish(start_training(folder, [], processes=1)) == [0]
        files = sorted(path.relative_to(folder / "a") for path in (folder / "a").iterdir() if path.is_file())
        cases = [(name, how) for name in files if name.suffix != ".png" for how in WAYS]
        for name, how in _some(cases, trials - trials // 2, chooser):
            with scratch() as copy:
                shutil.copytree(folder / "a", copy / "a")
                WAYS[how](copy / "a" / name)
                exported.trials += 1
                process = Forked("push", [copy / "a", "--repo", "me/x", "--dry-run"], copy)
                code, text = process.wait(), process.text()
                if code not in (0, 1, 2) or not _are_lines(text, "push_to_hub.py", code):
                    exported.fail(f"{name} {how}: code {code}: {text[-300:]}")
                elif code == 0 and name.name not in ("recipe.yaml", "summary.csv"):
                    exported.fail(f"{name} {how}: exported all the same")
                else:
                    exported.note("refused in one line" if code else "exported")
    return [resumed, exported]


def _resume_damaged(tally: Tally, folder: Path, what: str, reference: dict[str, str]) -> None:
    tally.trials += 1
    started = start_training(folder, ["--resume"], processes=1)
    codes, text = finish(started), started[0].text()
    if codes[0] not in (0, 1, 2) or not _are_lines(text, "train.py", codes[0]):
        tally.fail(f"{what}: code {codes[0]}: {text[-300:]}")
    elif codes[0] == 0 and digests(folder) != reference:
        tally.fail(f"{what}: resumed, but differs")
    else:
        tally.note("refused in one line" if codes[0] else "resumed, same end")


def _some(cases: list[Any], count: int, chooser: random.Random) -> list[Any]:
    return cases if count >= len(cases) else chooser.sample(cases, count)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[len(content) // 2] ^= 0x5A
    path.write_bytes(content)


WAYS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": _flip,
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "other": lambda path: path.write_bytes(b'{"a": [1, 2], "test": 3, "models": []}'),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
}


def disks(trials: int, chooser: random.Random) -> list[Tally]:
    """Limit the size of files after some updates, as a full disk would; then resume without the limit."""
    tally = Tally("full disk, then resumed")
    reference, _ = undisturbed(1)
    for _ in range(trials):
        with scratch() as folder:
            tally.trials += 1
            call, limit = chooser.randint(1, 10), chooser.choice([0, 1000, 50_000, 250_000])
            started = start_training(folder, [], processes=1, before=_limit_files(call, limit))
            codes, text = finish(started), started[0].text()
            if codes[0] not in (0, 1) or not _are_lines(text, "train.py", codes[0]):
                tally.fail(f"limit {limit} at update {call}: code {codes[0]}: {text[-300:]}")
            tally.note("one line" if codes[0] else "had enough space")
            _resume_and_compare(tally, folder, [], 1, reference)
    return [tally]


def _limit_files(call: int, limit: int) -> Callable[[], None]:
    def prepare() -> None:
        original, seen = Learner.update, 0

        def update(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == call:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return original(*args, **kwargs)

        Learner.update = update  # type: ignore[method-assign]

    return prepare


def concurrent(trials: int, chooser: random.Random) -> list[Tally]:
    """Start the same command twice at once: trainings, evaluations into one report, exports of one run."""
    tallies = [Tally(f"twice at once: {what}") for what in ("training", "evaluation", "export")]
    reference, _ = undisturbed(1)
    with scratch() as folder:
        assert finish(start_training(folder, [], processes=1)) == [0]
        for trial in range(trials):
            tally = tallies[trial % 3]
            tally.trials += 1
            with scratch() as copy:
                _twice(tally, trial % 3, folder / "a", copy, reference)
    return tallies


def _twice(tally: Tally, what: int, run: Path, folder: Path, reference: dict[str, str]) -> None:
    if what == 0:
        pair = [start_training(folder / "both", [], processes=1)[0] for _ in range(2)]
        codes = sorted(process.wait() or 0 for process in pair)
        if codes != [0, 2] or digests(folder / "both") != reference:
            tally.fail(f"codes {codes}: {pair[1].text()[-300:]}")
        return
    if what == 1:
        names = ["one", "two"]
        for name in names:
            shutil.copytree(run, folder / name)
        words = ["--limit", 50, "--threads", 1, "--output", folder / "report"]
        pair = [Forked("evaluate", ["--model", folder / name, *words], folder, tag=name) for name in names]
        codes = [process.wait() or 0 for process in pair]
        stored = json.loads((folder / "report" / "results.json").read_text())
        if codes != [0, 0] or sorted(stored["suites"]["clean"]) != names:
            tally.fail(f"codes {codes}: {[process.text()[-300:] for process in pair]}")
        return
    shutil.copytree(run, folder / "a")
    words = [folder / "a", "--repo", "me/x", "--dry-run"]
    pair = [Forked("push", words, folder, tag=str(number)) for number in range(2)]
    codes = [process.wait() or 0 for process in pair]
    if codes != [0, 0] or not (folder / "a" / "hub" / "config.json").is_file():
        tally.fail(f"codes {codes}: {[process.text()[-300:] for process in pair]}")


# Wrong calls


def _are_lines(text: str, command: str, code: int | None) -> bool:
    """Whether what a command printed is made of its own lines, one or more if it has failed, and no traceback."""
    lines = [line for line in text.splitlines() if line.strip() and "UserWarning" not in line and line[0] != " "]
    own = [line for line in lines if line.startswith(f"{command}: ")]
    return len(own) == len(lines) and (bool(own) or not code) and "--debug shows" not in text


def wrong_calls() -> list[tuple[str, list[str]]]:
    """Return calls that are wrong, each in one way: every key with values that are none of its own, and the rest."""
    from timm_patchup.core.method import list_methods, method_settings
    from timm_patchup.core.settings import settings_of
    from timm_patchup.recipe import Recipe

    calls: list[tuple[str, list[str]]] = []
    for name, key in settings_of(Recipe).items():
        flag = f"--{name.replace('_', '-')}"
        if key.types[0] is bool:
            calls += [("train", [f"{flag}=1"]), ("train", [flag, "yes"])]
        elif key.types[0] is str:
            calls += [("train", [flag]), ("train", [flag + "x", "1"])]
        elif "dict" in str(key.type):
            calls += [("train", [flag, word]) for word in ("noequals", "=1", "a b=1")]
        else:
            calls += [("train", [flag, word]) for word in ("", "nan", "-inf", "[", "x y", "{a: 1}", "1e999")]
    for method in list_methods():
        for name in method_settings(method):
            words = ["--mix", method, f"--mix-{name.replace('_', '-')}"]
            calls += [("train", [*words, word]) for word in ("nosuch", "-1", "[[1]]")]
    calls += [("train", words.split("|")) for words in WRONG_TRAINING]
    calls += [("evaluate", words.split("|")) for words in WRONG_EVALUATIONS]
    calls += [("push", words.split("|")) for words in WRONG_PUSHES]
    calls += [("study", words.split("|")) for words in WRONG_STUDIES]
    return calls


LONG = "n" * 300
WRONG_TRAINING = [
    "--dataset|hfds/",
    "--dataset|",
    "--dataset|cifar",
    "--model|vit_base_patch16_224",
    "--model|nosuch",
    f"--model|{LONG}",
    "--model|a\nb",
    "--model-kwargs|noequals",
    "--model-kwargs|nosuch=1",
    "--torchcompile|nosuch",
    "--aa|rand-mXX",
    "--aa|nosuch",
    "--aa|rand-m9-q3",
    "--mix|nosuch",
    "--opt|nosuch",
    "--opt|",
    "--workers|1000",
    "--workers|-1",
    "--recipe|",
    "--recipe|nosuch",
    f"--recipe|{LONG}",
    "--recipe|nosuch.yaml",
    "--recipe|a\nb",
    "--experiment|",
    f"--experiment|{LONG}",
    "--experiment|a\nb",
    "--experiment|a/b",
    "--experiment|..",
    "--output|/proc",
    "--output|/proc/nosuch",
    "--output|/dev/null",
    "--output|",
    f"--output|{LONG}",
    "--resume|nosuch",
    "--resume|",
    "--resume|--overwrite",
    "--push-to-hub|../x",
    "--push-to-hub|x",
    "--push-to-hub|a/b/c",
    "--push-to-hub|a/-b",
    "--push-to-hub|a/b..c",
    "--data-dir|nosuch",
    "--data-dir|",
    "--track|nosuch",
    "--threads|0",
    "--threads|x",
    "--nosuch|1",
    "nosuch",
    "--batch-size|7|--grad-accum-steps|2",
    "--batch-size|100000",
    "--input-size|3|32",
    "--decay-rate|0.3",
    "--warmup-lr|0.3",
    "--model-ema-decay|0.9",
    "--clip-mode|agc",
    "--amp-dtype|float16",
    "--opt-betas|0.9|0.9",
    "--remode|const",
    "--crop-pct|0.9",
    "--scale|1|0.5",
    "--num-classes|3",
    "--train-split|nosuch",
    "--val-split|nosuch",
    "--input-key|nosuch",
    "--target-key|nosuch",
    "--train-per-class|9999",
]
WRONG_EVALUATIONS = [
    "",
    "--model|nosuch_model",
    "--model|local-dir:nosuch",
    "--model|hf-hub:nosuch",
    "--model|a/b/c",
    "--suite|nosuch|--model|resnet18",
    "--model|resnet18|--data|nosuch",
    "--model|resnet18|--limit|0",
    "--model|resnet18|--seed|-1",
    "--model|resnet18|--batch-size|x",
    "--model|resnet18|--nosuch",
    f"--model|{LONG}",
    "--model|a\nb",
]
WRONG_PUSHES = [
    "",
    "nosuch|--repo|a/b",
    "nosuch|--repo|../x",
    ".|--repo|a/b",
    ".|--repo|x",
    ".|--nosuch",
    f"{LONG}|--repo|a/b",
]
WRONG_STUDIES = [
    "",
    "--study|nosuch",
    "--study|",
    "--study|nosuch.yaml",
    f"--study|{LONG}",
    "--study|fashion_mini|--seeds|0",
    "--study|fashion_mini|--jobs|-1",
    "--study|fashion_mini|--data-dir|nosuch",
    "--study|fashion_mini|--nosuch",
    "--study|fashion_mini|--|--nosuch|1",
    "--study|fashion_mini|--|--epochs|x",
    "--study|fashion_mini|--corrupted|nosuch",
    "--study|fashion_mini|--limit|x",
]


def calls(trials: int, chooser: random.Random) -> list[Tally]:
    tally = Tally("wrong calls")
    with scratch() as folder:
        work = folder / "work"
        for command, words in _some(wrong_calls(), trials, chooser):
            tally.trials += 1
            work.mkdir(exist_ok=True)
            process = Forked(
                command, words, work, tag="", variables={"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
            )
            code, text = process.wait(), process.text()
            left = sorted(path.name for path in work.iterdir() if path.name not in ("out.txt", "err.txt"))
            prog = {"train": "train.py", "evaluate": "evaluate.py", "push": "push_to_hub.py", "study": "study.py"}[
                command
            ]
            shown = f"{command} {[word[:40] for word in words]}"
            if code != 2 or not _are_lines(text, prog, code):
                tally.fail(f"{shown}: code {code}: {text[-300:]!r}")
            elif left:
                tally.fail(f"{shown}: wrote {left}")
            else:
                tally.note("one clear line or more, code 2, nothing written")
            shutil.rmtree(work)
    return [tally]


PARTS = {"signals": signals, "kills": kills, "damage": damage, "disks": disks, "concurrent": concurrent, "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to try (default: all)"
    )
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="trials per part (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of moments and choices (default: 0)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tallies: list[Tally] = []
    for part in given.part:
        tallies += PARTS[part](given.trials, random.Random(f"{part} {given.seed}"))
    print("| what | trials | failed | how they ended |\n| --- | ---: | ---: | --- |")
    for tally in tallies:
        print(tally.row())
    raise SystemExit(1 if any(tally.failures for tally in tallies) else 0)


if __name__ == "__main__":
    main()
