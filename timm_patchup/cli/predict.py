"""The command ``predict.py``: what a model sees in images, as a table, CSV or JSON lines, and as a picture."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import UserError
from .command import Parser, check_minimums, print_errors, run_command

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
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="also write a picture of the images and their classes"
    )
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
    problems += check_minimums(given, {"top": 1, "batch_size": 1, "threads": 1})
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
        save(given.plot, plot_predictions, kept)
        print(f"{given.plot}: {len(kept)} images", file=sys.stderr)
    if unreadable:
        return print_errors(COMMAND, [f"{unreadable} image(s) could not be read"], 1)
    return 0


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
        print(f"{path}  {classes}", flush=True)

    return write


def _csv() -> Write:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    started: list[bool] = []

    def write(path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        if not started:
            started.append(True)
            number = range(1, len(labels) + 1)
            writer.writerow(["image", *(f"{name}_{n}" for n in number for name in ("label", "probability"))])
        writer.writerow([path, *(item for pair in zip(labels, probabilities) for item in pair)])

    return write


def _jsonl() -> Write:
    def write(path: str, labels: Sequence[str], probabilities: Sequence[float]) -> None:
        classes = [{"label": label, "probability": value} for label, value in zip(labels, probabilities)]
        print(json.dumps({"image": path, "classes": classes}, ensure_ascii=False), flush=True)

    return write


_WRITERS: dict[str, Callable[[], Write]] = {"table": _table, "csv": _csv, "jsonl": _jsonl}


if __name__ == "__main__":
    main()
