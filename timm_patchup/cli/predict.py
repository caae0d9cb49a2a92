"""The command ``predict.py``: what a model sees in images, as a table, CSV or JSON lines, and as a picture."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import UserError
from ..system.output import printable, say
from .command import Parser, check_minimums, check_threads, empty_values, print_errors, run_command

COMMAND = "predict.py"
FORMATS = ("table", "csv", "jsonl")
STANDARD_INPUT = "-"


def main(argv: Sequence[str] | None = None) -> None:
    """Predict and exit."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped")


def make_parser() -> Parser:
    """Return the parser of all flags."""
    parser = Parser(
        prog=COMMAND,
        usage="%(prog)s --model MODEL [flags] IMAGES...",
        description="Print the classes that a model sees in images, with their probabilities. An image that cannot be\n"
        "read is named and skipped, and the exit code is 1.",
        allow_abbrev=False,
        examples=[
            "python scripts/predict.py --model output/finetune_hard_patchup new_photos",
            "python scripts/predict.py --model output/finetune_hard_patchup a.jpg b.jpg --format csv > seen.csv",
            "find photos -type f -newer last | python scripts/predict.py --model USER/NAME - --plot seen.png",
        ],
    )
    parser.add_argument("images", nargs="*", metavar="IMAGES", help="files and folders; - for a list on standard input")
    parser.add_argument("--model", metavar="MODEL", help="a run, an export, USER/NAME on the Hub, or a timm model name")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="classes per image (default: 3)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print (default: table)")
    parser.add_argument("--plot", metavar="FILE", help="also write a picture (PNG) of the images and their classes")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images at a time (default: 32)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def _run(words: Sequence[str]) -> int:
    given, problems = make_parser().read(words)
    if given.model is None:
        problems.append("--model is required: a run, an export, USER/NAME on the Hub or a timm model name")
    if not given.images:
        problems.append("no images: give files or folders, or - for a list on standard input")
    if "" in given.images:
        problems.append("an image is empty: give files or folders, . for the working directory")
    problems += empty_values(given, ("model", "plot"))
    if given.plot:
        problems += _plot_problems(Path(given.plot))
    problems += check_minimums(given, {"top": 1, "batch_size": 1})
    problems += check_threads(given)
    if problems:
        raise UserError(problems)
    from ..evaluation.grid import MAX_IMAGES, plot_predictions  # imports torch and timm, which take seconds
    from ..evaluation.predict import Prediction, predict
    from ..report.figures import save
    from ..runs.accelerator import make_accelerator

    device = make_accelerator(threads=given.threads).device
    images = list(_listed(given.images))
    seen = predict(given.model, images, top=given.top, batch_size=given.batch_size, device=device)
    kept: list[Prediction] = []
    write = _WRITERS[given.format]()
    unreadable = 0
    for one in seen:
        if one.error is not None:
            unreadable += 1
            print_errors(COMMAND, [f"{one.path}: {one.error}; skipped"], 1)
            continue
        write(one.path, one.labels, one.probabilities)
        if given.plot is not None and len(kept) < MAX_IMAGES:
            kept.append(one)
    if given.plot is not None and kept:
        save(Path(given.plot), plot_predictions, kept)
        say(f"{given.plot}: {len(kept)} images", stream=sys.stderr)
    if unreadable:
        return print_errors(COMMAND, [f"{unreadable} image(s) could not be read"], 1)
    return 0


def _plot_problems(path: Path) -> list[str]:
    if path.is_dir():
        return [f"--plot must be a file, but {path} is a folder"]
    return (
        []
        if path.suffix.lower() == ".png"
        else [f"--plot writes a PNG file: give a name that ends in .png, not {path}"]
    )


def _listed(words: Iterable[str]) -> Iterator[str]:
    """Yield the words, and the lines of standard input in place of ``-``."""
    for word in words:
        if word != STANDARD_INPUT:
            yield word
            continue
        lines = [line.rstrip("\r\n") for line in sys.stdin]
        if not any(lines):
            raise UserError("standard input lists no images")
        yield from filter(None, lines)


Write = Callable[[str, Sequence[str], Sequence[float]], None]


def _table() -> Write:
    def write(path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        classes = "  ".join(f"{label} {100 * value:.1f}%" for label, value in zip(labels, probabilities))
        say(f"{path}  {classes}")

    return write


def _csv() -> Write:
    started: list[bool] = []

    def write_row(items: Sequence[object]) -> None:
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow([printable(str(item)) for item in items])
        say(row.getvalue())

    def write(path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        if not started:
            started.append(True)
            number = range(1, len(labels) + 1)
            write_row(["image", *(f"{name}_{n}" for n in number for name in ("label", "probability"))])
        write_row([path, *(item for pair in zip(labels, probabilities) for item in pair)])

    return write


def _jsonl() -> Write:
    def write(path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        classes = [{"label": label, "probability": value} for label, value in zip(labels, probabilities)]
        say(json.dumps({"image": path, "classes": classes}, ensure_ascii=False))

    return write


_WRITERS: dict[str, Callable[[], Write]] = {"table": _table, "csv": _csv, "jsonl": _jsonl}


if __name__ == "__main__":
    main()
