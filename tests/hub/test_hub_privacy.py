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
from timm_patchup.system.privacy import Private, without_comments

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
    assert Private(known=frozenset({"test"})).clean(kept) == kept
    assert Private().clean("by test") == "by NAME"
    assert Private().clean("in '/data/me/x.png', C:\\Users\\me\\x ~/me/x") == "in 'LOCAL_PATH', LOCAL_PATH LOCAL_PATH"


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
