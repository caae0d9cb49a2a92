"""Exports contain nothing private."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.hub.hub_runs import FILES, make_run, names_in
from timm_patchup.hub import export
from timm_patchup.recipe import load_recipe
from timm_patchup.system.privacy import PrivateWords, without_comments

TELLING = {
    "HF_TOKEN": "hf_TellingTellingTelling1234567",
    "WANDB_API_KEY": "tellingkeytellingkey",
    "USER": "bartholomew",
    "LOGNAME": "bartholomew",
}


def test_nothing_private_is_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "bartholomew"
    run = make_run(
        home / "secret project" / "run",
        dataset=f"{home}/secret data/images",
        model="test_resnet",
        model_kwargs={"pretrained_cfg_overlay": {"file": f"{home}/first weights.pth"}},
        results={"class_names": [*"abcdefgh", f"{home}/i", TELLING["HF_TOKEN"]]},
    )
    report = run.path / "report"
    report.mkdir()
    (report / "of.json").write_text(json.dumps({"data": f"{home}/a name/of a folder"}))
    words = [*TELLING.values(), str(home), str(tmp_path), socket.gethostname(), "/opt/bartholomew-x/y", str(run.path)]
    (report / "table.md").write_text("\n".join(f"made by {word} with `{word}`," for word in words))
    note = PngInfo()
    note.add_text("Author", f"bartholomew in {home}")
    Image.new("RGB", (4, 4), "red").save(report / "plot.png", pnginfo=note)
    assert b"bartholomew" in (report / "plot.png").read_bytes()
    (home / "diary.md").write_text("dear diary")
    (report / "linked.md").symlink_to(home / "diary.md")
    (report / ".hidden.md").write_text("hidden")
    (report / "weights.pt").write_bytes(b"pickle")
    for name, value in {**TELLING, "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(run.path.parent)
    out = export("run", tmp_path / "out")
    assert names_in(out) == FILES | {"report/table.md", "report/plot.png", "report/of.json"}
    telling = [*TELLING.values(), "secret project", "secret data", "data/images", "weights.pth", str(tmp_path)]
    telling += ["dear diary", "a name/of a folder"]
    if len(socket.gethostname()) >= 8:
        telling.append(socket.gethostname())
    for name in names_in(out):
        content = (out / name).read_bytes()
        for word in telling:
            assert word.encode() not in content, f"{word} in {name}"
    assert np.array(Image.open(out / "report" / "plot.png"))[0, 0].tolist() == [255, 0, 0]
    assert load_recipe(out / "recipe.yaml").model == "test_resnet"
    assert json.loads((out / "config.json").read_text())["pretrained_cfg"]["tag"] == "hard_patchup_local_data"


def test_cleaning_keeps_public_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "test")
    kept = 'T-shirt/top, 8/255, https://huggingface.co/a/b, "test": 1, a/b/c, </svg>, path/to/train.py, and/or'
    assert PrivateWords(known=frozenset({"test"})).clean(kept) == kept
    assert PrivateWords().clean("by test") == "by NAME"
    paths = "in '/data/me/x.png', C:\\Users\\me\\x ~/me/x"
    assert PrivateWords().clean(paths) == "in 'LOCAL_PATH', LOCAL_PATH LOCAL_PATH"


PATHS = [
    "file:///home/bob/x.png",
    "file://host/data/me/x",
    "FILE:/etc/me/x%20y",
    "~bob/data",
    "~bob/data/x.png",
    "~/data",
    "../../home/bob/data",
    "../data/bob/x",
    "runs/../../bob/data",
    "/home/bob/data",
]
QUOTED = ["file:///home/bob/my data/x", "~bob/my data/x", "../../home/bob/my data", "/home/bob/my data"]
TOKENS = [
    "hf_" + "aB3" * 8,
    "ghp_" + "aB3" * 12,
    "gho_" + "aB3" * 12,
    "github_pat_11AB_" + "aB3" * 12,
    "glpat-" + "aB3-" * 6,
    "sk-" + "aB3" * 16,
    "sk-proj-" + "aB3_-" * 10,
    "sk-ant-api03-" + "aB3_-" * 10,
]
PUBLIC = [
    "../README.md",
    "a/../b",
    "~8/255",
    "about ~5/10 of",
    "a file: x.png",
    "profile:/",
    "/m/0k4j",
    "/g/11bc",
    "sk-learn",
    "sk-resnext50_32x4d",
    "task-0123456789abcdef0123456789",
    "disk-abcdefghijklmnopqrstuvwxyz",
    "ghp_ and github_pat_ and hf_",
    "hf_hub_download_of_a_repository",
    "https://huggingface.co/timm/resnet50.a1_in1k",
    "https://x.example/a/../b/c",
    "hfds/uoft-cs/cifar10",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "10/20/30, and/or/not, km/h",
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_are_cleaned_wherever_they_are(path: str) -> None:
    private = PrivateWords()
    for before, after in (("", ""), ("see ", " here"), ("(", ")"), ("data=", ", next"), ('"', '"'), ("`", "`.")):
        assert private.clean(f"{before}{path}{after}") == f"{before}LOCAL_PATH{after}"
    assert private.clean_values({"data": [path]}) == {"data": ["LOCAL_PATH"]}


@pytest.mark.parametrize("path", QUOTED)
def test_paths_with_spaces_are_cleaned_in_quotes_and_as_values(path: str) -> None:
    assert PrivateWords().clean(f"from '{path}' here") == "from 'LOCAL_PATH' here"
    assert PrivateWords().clean_values([path]) == ["LOCAL_PATH"]


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_are_known_by_their_form(token: str) -> None:
    private = PrivateWords()
    for before, after in (("", ""), ("token=", "\n"), ("'", "'"), ("https://x:", "@github.com")):
        assert private.clean(f"{before}{token}{after}") == f"{before}TOKEN{after}"
        assert private.secret_in(f"{before}{token}{after}".encode())
    assert private.clean_values({token: token}) == {"TOKEN": "TOKEN"}


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_nobodys_secret_stays_readable(text: str) -> None:
    private = PrivateWords()
    assert private.clean(text) == text
    assert private.clean_values([text]) == [text]
    assert not private.found_in(text.encode())


def test_a_user_may_have_the_name_of_an_optimizer_or_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["adamw", *"abcdefgh", "rose"]
    run = make_run(tmp_path / "run", opt="adamw", results={"class_names": names})
    for user in ("adamw", "rose"):
        monkeypatch.setenv("LOGNAME", user)
        out = export(run.path, tmp_path / "out")
        assert load_recipe(out / "recipe.yaml") == run.recipe()
        assert json.loads((out / "config.json").read_text())["label_names"] == names


@pytest.mark.parametrize("user", ["torch", "faramarzi"])
def test_a_user_may_have_the_name_of_a_word_in_the_card(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", dataset="/data/of someone/images")
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "on local data, with" in card
    monkeypatch.setenv("LOGNAME", user)
    assert (export(run.path, tmp_path / "out") / "README.md").read_text() == card


def test_a_truncated_png_is_refused() -> None:
    with pytest.raises(ValueError, match="truncated"):
        without_comments(b"\x89PNG\r\n\x1a\n\0\0\0")
