"""The push command: export a finished run and push it to the Hub. The training command uses its export folder."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError, brief
from ..hub.export import export, is_export
from ..hub.push import files_of, push
from ..system.network import is_repo_name
from ..system.output import say
from .command import Parser, run_command

COMMAND = "push_to_hub.py"
EXPORT = "hub"  # folder of the export, in the folder of the run


def main(argv: Sequence[str] | None = None) -> None:
    """Export a run, push it and exit."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped; no partial upload, run the command again")


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog=COMMAND,
        description="Export a finished run to RUN_DIR/hub, as a folder that timm loads, and push it to the Hub.",
        allow_abbrev=False,
        examples=[
            "python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --dry-run",
            "python scripts/push_to_hub.py output/fashion_mini_hard_patchup --repo USER/NAME --private",
            "python scripts/push_to_hub.py output/fashion_mini_hard_patchup/hub --repo USER/NAME    # an edited export",
        ],
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a finished run, or an export to push as it is")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    target = parser.add_argument_group("repository")
    target.add_argument(
        "--repo", required=True, metavar="USER/NAME", help="repository, created if it does not exist (required)"
    )
    target.add_argument("--private", action="store_true", help="create a private repository")
    target.add_argument("--revision", metavar="BRANCH", help="branch, created if it does not exist (default: main)")
    target.add_argument("--create-pr", action="store_true", help="open a pull request instead of committing")
    target.add_argument("--overwrite", action="store_true", help="replace files of the repository")
    exporting = parser.add_argument_group("export")
    exporting.add_argument(
        "--license",
        metavar="ID",
        help="license of the weights (default: the pretrained weights', or apache-2.0)",
    )
    exporting.add_argument("--dry-run", action="store_true", help="export, list the files and push nothing")
    return parser


def _run(words: Sequence[str]) -> int:
    given, problems = make_parser().read(words)
    if not is_repo_name(given.repo):
        problems.append(f"--repo must be USER/NAME, got {brief(given.repo)}")
    if not given.run_dir:
        raise UserError([*problems, "RUN_DIR is empty: give a finished run or an export"])
    folder = Path(given.run_dir)
    exported = is_export(folder)
    if exported and given.license:
        problems.append(f"--license is for runs, {folder} is an export: edit the license in its README.md")
    if problems:
        raise UserError(problems)
    if not exported:
        folder = export(folder, folder / EXPORT, license=given.license)
    if given.dry_run:
        for name in files_of(folder, given.repo):
            say(f"{(folder / name).stat().st_size:12,}  {name}")
        say(f"not pushed to {given.repo}: edit {folder}/README.md if you like, then push {folder}")
        return 0
    say(
        push(
            folder,
            given.repo,
            private=given.private,
            revision=given.revision,
            create_pr=given.create_pr,
            overwrite=given.overwrite,
        )
    )
    return 0
