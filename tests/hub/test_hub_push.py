"""Pushes with the real client to a local Hub: one commit, resumable, and one line per failure."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file

from tests.hub.hub_client import Client, environment
from tests.hub.hub_runs import FILES as EXPORTED
from tests.hub.hub_runs import add_report, make_run
from tests.hub.hub_server import TOKEN, Hub
from tests.support.training import TINY, Ended, command, train_here
from timm_patchup.hub import export, load
from timm_patchup.hub.failures import explain_push_error

REPO = "USER/NAME"
FILES = EXPORTED | {".gitattributes"}


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def client(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = Client(server.endpoint, tmp_path_factory.mktemp("hf_home"))
    yield made
    made.close()


@pytest.fixture
def hub(server: Hub) -> Hub:
    """The Hub, empty and without failures."""
    for kept in (server.repositories, server.large, server.calls, server.failures, server.times):
        kept.clear()
    return server


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", model="test_resnet").path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def folder(finished: Path) -> Path:
    """The same run, exported."""
    return export(finished, finished.parent / "folder")


def failed(ended: Ended, message: str, code: int = 1) -> None:
    assert ended.code == code, ended
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("push_to_hub.py: "), ended.err
    assert message in last
    assert "Traceback" not in ended.err
    assert TOKEN not in ended.out + ended.err


def test_a_push_is_one_commit_and_a_second_one_does_nothing(hub: Hub, client: Client, run: Path) -> None:
    ended = client(run, "--repo", REPO, "--private")
    assert ended.code == 0, ended.err
    repository = hub.repositories[REPO]
    assert repository.private
    assert list(repository.commits)[-1] in ended.out
    assert len(repository.commits) == 2  # the Hub's own, and ours
    files = hub.files(REPO)
    assert files.keys() == FILES
    assert b'create_model("hf-hub:USER/NAME"' in files["README.md"]
    assert files["model.safetensors"] == (run / "hub" / "model.safetensors").read_bytes()
    assert hub.calls["unknown"] == 0
    hub.calls.clear()
    again = client(run, "--repo", REPO)
    assert again.code == 0, again.err
    assert not {"upload", "commit", "create"} & hub.calls.keys()
    # A report that came later is added to the same model.
    (run / "report").mkdir()
    (run / "report" / "table.csv").write_text("a,b\n")
    failed(client(run, "--repo", REPO), "has this model with another README.md")
    added = client(run, "--repo", REPO, "--overwrite")
    assert added.code == 0, added.err
    assert hub.files(REPO).keys() == FILES | {"report/table.csv"}
    assert sorted(hub.committed) == ["README.md", "report/table.csv"]
    assert hub.calls["upload"] == 0


def test_a_dry_run_lists_files_and_sends_nothing(hub: Hub, client: Client, run: Path) -> None:
    ended = client(run, "--repo", REPO, "--dry-run", token=None)
    assert ended.code == 0, ended.err
    assert all(name in ended.out for name in FILES - {".gitattributes"})
    assert not hub.calls
    (run / "hub" / "README.md").write_text("---\nlicense: mit\n---\n# edited\n")
    (run / "hub" / "notes.txt").write_text("not part of an export")
    assert client(run / "hub", "--repo", REPO).code == 0
    assert hub.files(REPO)["README.md"].endswith(b"# edited\n")
    assert hub.files(REPO).keys() == FILES


def test_nothing_but_files_of_an_export_is_touched_or_sent(hub: Hub, client: Client, run: Path) -> None:
    assert client(run, "--repo", REPO).code == 0
    hub.add(REPO, {**hub.files(REPO), "report/thesis.pdf": b"years", "report/old.csv": b"a,b"})
    (run / "hub" / "report").mkdir()
    (run / "hub" / "report" / "weights.bin").write_bytes(b"pickle")
    (run / "hub" / "report" / "new.csv").write_text("a,b\n")
    assert client(run / "hub", "--repo", REPO, "--overwrite").code == 0
    assert hub.files(REPO).keys() == FILES | {"report/thesis.pdf", "report/new.csv"}
    before = hub.files(REPO)
    (run / "hub" / "report" / "new.csv").write_text("token,hf_abcdefghijklmnopqrst\n")
    ended = client(run / "hub", "--repo", REPO, "--overwrite")
    failed(ended, "report/new.csv contains a token or a path of this machine: remove it, then push again", 2)
    assert hub.files(REPO) == before


def test_calls_that_are_wrong(hub: Hub, client: Client, run: Path) -> None:
    failed(client(run, "--repo", REPO, token=None), "no Hub token: log in with `hf auth login` or set HF_TOKEN")
    failed(client(run, "--repo", REPO, token="hf_wrongwrongwrongwrong"), "does not accept the token")
    failed(client(run, "--repo", "NAME"), "--repo must be USER/NAME, got 'NAME'", 2)
    failed(client(run / "checkpoints", "--repo", REPO), "has no run", 2)
    failed(client(run, "--repo", REPO, "--create-pr"), "does not exist, so there is nothing to propose to")
    (run / "results.json").unlink()
    failed(client(run, "--repo", REPO), "not finished: resume it (train.py --resume", 2)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("call", "failure", "message"),
    [
        ("create", 403, "no write access to USER/NAME"),
        ("preupload", 403, "no write access to USER/NAME"),
        ("commit", 402, "has no storage left"),
        ("upload", 507, "has no storage left"),
        ("batch", 413, "has no storage left"),
        ("commit", 500, "the Hub has a problem (status 500)"),
        ("commit", 412, "changed by someone else meanwhile"),
        ("create", 429, "too many requests"),
        ("whoami", "drop", "cannot be reached or closed the connection"),
        ("upload", "drop", "cannot be reached or closed the connection"),
        ("commit", "drop", "cannot be reached or closed the connection"),
        ("commit", "lose", "cannot be reached or closed the connection"),
    ],
)
def test_after_any_failure_the_same_command_succeeds(
    call: str, failure: int | str, message: str, hub: Hub, client: Client, folder: Path
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.failures[call] = failure
    failed(client(folder, "--repo", REPO), message)
    if failure != "lose" and REPO in hub.repositories:
        assert hub.files(REPO).keys() == {".gitattributes"}  # a reader sees all or nothing
    uploaded = set(hub.large)
    hub.failures.clear()
    hub.calls.clear()
    ended = client(folder, "--repo", REPO)
    assert ended.code == 0, ended.err
    assert hub.files(REPO).keys() == FILES
    assert len(hub.repositories[REPO].commits) == 2
    assert hub.calls["upload"] == 2 - len(uploaded)  # weights and figure, each sent once
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("You have reached your private storage limit.", "the account of USER/NAME has no storage left"),
        ("Forbidden", "no write access to USER/NAME"),
    ],
)
def test_a_full_account_has_no_status_but_a_message_of_the_server(said: str, line: str) -> None:
    response = cast(Any, SimpleNamespace(status_code=403, headers={}, request=None))
    error = HfHubHTTPError("403", response=response, server_message=said)
    assert str(explain_push_error(error, REPO)).startswith(line)


def test_an_upload_is_retried_after_a_dropped_connection(hub: Hub, client: Client, folder: Path) -> None:
    hub.failures["upload"], hub.times["upload"] = "drop", 1
    ended = client(folder, "--repo", REPO)
    assert ended.code == 0, ended.err
    assert hub.calls["upload"] == 3
    assert hub.files(REPO).keys() == FILES


def test_a_concurrent_commit_is_noticed(hub: Hub, client: Client, folder: Path) -> None:
    hub.failures["preupload"] = "race"
    failed(client(folder, "--repo", REPO), "changed by someone else meanwhile")
    assert hub.files(REPO).keys() == {".gitattributes", "theirs.txt"}


def test_other_files_are_not_overwritten_by_default(hub: Hub, client: Client, folder: Path) -> None:
    hub.add(REPO)
    config = b'{"architecture": "resnet50", "num_classes": 3}'
    other = {"config.json": config, "model.safetensors": b"x", "report/old.csv": b"x", "notes.txt": b"mine"}
    hub.repositories[REPO].commit("main", {**hub.files(REPO), **other})
    hub.repositories[REPO].branches["backup"] = hub.repositories[REPO].branches["main"]
    before = dict(hub.repositories[REPO].commits)
    failed(client(folder, "--repo", REPO), "USER/NAME has another model (resnet50): choose another repo")
    failed(client(folder, "--repo", REPO, "--private"), "exists and is public")
    failed(client(folder, "--repo", REPO, "--revision", "main"), "USER/NAME has another model (resnet50)")
    failed(client(folder, "--repo", REPO, "--revision", "backup"), "USER/NAME has another model (resnet50)")
    assert hub.repositories[REPO].commits == before
    proposed = client(folder, "--repo", REPO, "--create-pr")
    assert "/discussions/1" in proposed.out, proposed.err
    assert hub.files(REPO)["config.json"] == config
    hub.failures["commit"] = "drop"
    failed(client(folder, "--repo", REPO, "--revision", "second"), "closed the connection")
    hub.failures.clear()
    branched = client(folder, "--repo", REPO, "--revision", "second")
    assert branched.code == 0, branched.err
    assert b"test_resnet" in hub.files(REPO, "second")["config.json"]
    assert hub.files(REPO, "second").keys() == FILES
    assert hub.files(REPO)["config.json"] == config
    ended = client(folder, "--repo", REPO, "--overwrite")
    assert ended.code == 0, ended.err
    assert hub.files(REPO).keys() == FILES | {"notes.txt"}
    hub.add("USER/TEXT", {"thesis.tex": b"years of work"})
    failed(client(folder, "--repo", "USER/TEXT"), "USER/TEXT has other files")


def test_timm_loads_from_the_hub_in_a_separate_process(hub: Hub, client: Client, run: Path, tmp_path: Path) -> None:
    ours = make_run(tmp_path / "ours")
    add_report(ours)
    assert client(run, "--repo", "USER/TIMMS").code == 0
    assert client(ours.path, "--repo", "USER/OURS").code == 0
    hub.add("USER/PICKLE", {"config.json": hub.files("USER/TIMMS")["config.json"], "pytorch_model.bin": b"evil"})
    images = torch.randn(2, 3, 32, 32)
    torch.save(images, tmp_path / "images.pt")
    code = f"""
import sys, timm, torch
from safetensors.torch import save_file
before = set(sys.modules)
images = torch.load("images.pt", weights_only=True)
logits = {{"timms": timm.create_model("hf-hub:USER/TIMMS", pretrained=True).eval()(images)}}
try:
    timm.create_model("hf-hub:USER/OURS", pretrained=True)
except RuntimeError as error:
    assert "Unknown model (preactresnet8)" in str(error), error
else:
    raise AssertionError
assert "timm_patchup" not in sys.modules
import timm_patchup
heavy = {{"accelerate", "datasets", "matplotlib", "timm_patchup.hub"}}
assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
logits["ours"] = timm.create_model("hf-hub:USER/OURS", pretrained=True).eval()(images)
import timm_patchup.hub
logits["loaded"] = timm_patchup.hub.load("USER/OURS@{hub.repositories["USER/OURS"].branches["main"]}")(images)
for name, said in {{"PICKLE": "never pickles", "NONE": "no such model", "OURS@x": "no such revision"}}.items():
    try:
        timm_patchup.hub.load("USER/" + name)
    except timm_patchup.hub.HubError as error:
        assert said in str(error), error
    else:
        raise AssertionError(name)
save_file({{name: value.detach() for name, value in logits.items()}}, "logits.safetensors")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(hub.endpoint, tmp_path / "cache"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    logits = load_file(tmp_path / "logits.safetensors")
    assert torch.equal(logits["timms"], load(run)(images))
    assert torch.equal(logits["ours"], load(ours.path)(images))
    assert torch.equal(logits["loaded"], logits["ours"])


def test_training_pushes_the_finished_run(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    flags = [*TINY, "--epochs", "1", "--output", tmp_path, "--experiment", "run", "--push-to-hub"]
    wrong = train_here(*flags, "NAME")
    assert (wrong.code, wrong.err) == (2, "train.py: --push-to-hub must be USER/NAME, got 'NAME'\n")
    hub.failures["create"] = 403
    refused = train_here(*flags, REPO)
    last = refused.err.strip().splitlines()[-1]
    assert refused.code == 1
    assert last.startswith("train.py: the run is finished, but not on the Hub: no write access to USER/NAME"), last
    assert last.endswith(f"To push it later: python -m timm_patchup.hub {tmp_path / 'run'} --repo USER/NAME")
    assert "test error" in refused.out
    assert (tmp_path / "run" / "results.json").is_file()
    hub.failures.clear()
    done = train_here(*flags, REPO, "--resume")
    assert done.code == 0, done.err
    assert hub.files(REPO).keys() == FILES | {"confusion.png"}
    assert b"Ankle boot" in hub.files(REPO)["results.json"]


def test_one_of_two_processes_pushes(hub: Hub, tmp_path: Path) -> None:
    flags = [*TINY, "--epochs", "1", "--output", tmp_path, "--experiment", "run", "--push-to-hub", REPO]
    done = subprocess.run(
        command(*flags, processes=2),
        env=environment(hub.endpoint, tmp_path / "cache") | {"HF_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert hub.files(REPO).keys() == FILES | {"confusion.png"}
    assert (hub.calls["create"], hub.calls["commit"]) == (1, 1)
