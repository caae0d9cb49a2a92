"""The command: a run to the Hub, and every way that can fail to one clear line and an exit code.

Exit codes: 0 done, 1 the push failed, 2 the call was wrong, 130 stopped by Ctrl-C.
"""

from collections.abc import Sequence
from pathlib import Path

from ..errors import HubError, UserError
from ..hub.export import export, is_export
from ..hub.push import files_of, push
from ..system.network import is_repo_name
from .command import Parser, run_command

COMMAND = "push_to_hub.py"
EXPORT = "hub"


def main(argv: Sequence[str] | None = None) -> None:
    """Export a run and push it; exit with a code and one clear line if that is not possible."""
    run_command(COMMAND, _run, argv, on_interrupt="stopped; no partial upload, run the command again")


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog=COMMAND,
        description="Export a finished run into RUN_DIR/hub, as a folder that timm loads, and push it to the Hub.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a finished run; or an export, pushed as it is")
    parser.add_argument("--repo", required=True, metavar="USER/NAME", help="where to; made if it is not there")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--dry-run", action="store_true", help="export, show what would be pushed, and stop")
    parser.add_argument("--revision", metavar="R", help="a branch other than main; made if it is not there")
    parser.add_argument("--create-pr", action="store_true", help="propose it in a pull request instead")
    parser.add_argument("--overwrite", action="store_true", help="replace what lies in the repository")
    parser.add_argument("--license", metavar="ID", help="licence of the weights; default that of the first weights")
    return parser


def _run(words: Sequence[str]) -> int:
    call, problems = make_parser().read(words)
    if problems:
        raise UserError(problems)
    if not is_repo_name(call.repo):
        raise HubError(f"--repo is USER/NAME, got {call.repo!r}")
    folder = call.run_dir
    if not is_export(folder):
        folder = export(call.run_dir, call.run_dir / EXPORT, license=call.license)
    elif call.license:
        raise HubError(f"{folder} is exported already, --license comes with the run: edit its README.md")
    if call.dry_run:
        for name in files_of(folder, call.repo):
            print(f"{(folder / name).stat().st_size:12,}  {name}")
        print(f"would be pushed to {call.repo}; edit {folder}/README.md and push that folder, or push as it is")
        return 0
    where = push(
        folder,
        call.repo,
        private=call.private,
        revision=call.revision,
        create_pr=call.create_pr,
        overwrite=call.overwrite,
    )
    print(where)
    return 0
