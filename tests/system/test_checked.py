"""Files that a user or a crash may have touched: whatever is wrong with them is one line."""

from pathlib import Path
from types import NoneType

import pytest

from timm_patchup.errors import UserError
from timm_patchup.runs.folder import RunFolder, parse_summary
from timm_patchup.study.definition import load_study
from timm_patchup.system.checked import check_keys, read_json, read_yaml
from timm_patchup.system.network import is_repo_name

DAMAGED = [b"", b"{", b"[1, 2]", b"3", b"null", b'{"test": NaN}', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": ' * 50_000]


def the_line(caught: pytest.ExceptionInfo[UserError]) -> str:
    assert len(caught.value.problems) == 1
    assert "\n" not in caught.value.problems[0]
    return caught.value.problems[0]


@pytest.mark.parametrize("content", DAMAGED, ids=[str(content[:12]) for content in DAMAGED])
def test_damaged_json_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json(path, test=dict)
    assert the_line(caught).startswith(str(path))
    with pytest.raises(UserError):
        RunFolder(tmp_path).results()


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\t- x", "{" * 20_000, "a: 2020-99-99", "!!python/object:os.system {}", "&a [*a]"]
)
def test_damaged_yaml_is_one_line_or_harmless(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        check_keys(read_yaml(path), {}, where=str(path))
    assert the_line(caught).startswith(str(path))


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    for path, expected in ((tmp_path / "no", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(UserError) as caught:
            read_json(path)
        assert expected in the_line(caught)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"a": 1}, "has no b"),
        ({"a": "1", "b": None}, "a must be a whole number, got '1'"),
        ({"a": True, "b": None}, "a must be a whole number, got True"),
        ({"a": 1, "b": [1]}, "b must be text or none, got [1]"),
        ([1], "must be a mapping of names to values, got a list"),
        ({1: 2}, "must be a mapping of names to values"),
    ],
)
def test_keys_and_their_types_are_checked(content: object, expected: str) -> None:
    with pytest.raises(UserError, match=r"^x") as caught:
        check_keys(content, {"a": int, "b": (str, NoneType)}, where="x")
    assert expected in the_line(caught)


@pytest.mark.parametrize(
    "text",
    [
        "epoch,lr\n1,0.1\n",
        "epoch,lr,train_loss,val_loss,val_top1,val_top5,val_error\n1,x,1,1,1,1,1\n",
        "epoch,lr,train_loss,val_loss,val_top1,val_top5,val_error\n1,0.1\n",
        "epoch,lr,train_loss,val_loss,val_top1,val_top5,val_error\n,1,1,1,1,1,1\n",
    ],
)
def test_a_damaged_summary_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^summary\.csv is damaged: row 1"):
        parse_summary(text)


GROUPS = "groups: [{benchmarks: [fashion_mini], methods: [none]}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be a mapping"),
        ("- 1", "must be a mapping"),
        ("title: x\ngroups: 3\n", "groups must be a list, got 3"),
        ("title: x\ngroups: [3]\n", "must be a mapping"),
        ("title: x\ngroups: [{benchmarks: fashion_mini, methods: [none]}]\n", "benchmarks must be a list"),
        ("title: x\ngroups: [{benchmarks: [1], methods: [none]}]\n", "benchmarks must be a list of names"),
        ("title: x\ngroups: [{benchmarks: [fashion_mini], methods: [none], cases: [1]}]\n", "cases must be a mapping"),
        ("title: x\ngroups: [{benchmarks: [fashion_mini], methods: [none], cases: {a: 1}}]\n", "case a must be a map"),
        ("title: x\ngroups: [{benchmarks: [fashion_mini], methods: [none], grid: {lr: 1}}]\n", "lr must be a list"),
        (f"title: [x]\n{GROUPS}", "title must be text, got ['x']"),
        (f"title: x\nseeds: many\n{GROUPS}", "seeds must be a whole number, got 'many'"),
        (f"title: x\nseeds: 0\n{GROUPS}", "seeds must be at least 1, got 0"),
        (f"title: x\nmetrics: test_error\n{GROUPS}", "metrics must be a list"),
        (f"title: x\nmetrics: []\n{GROUPS}", "metrics is empty"),
        (f"title: x\nmeasure: speed\n{GROUPS}", "measure must be one of training, timing, got 'speed'"),
        (f"title: x\nevaluation: [3]\n{GROUPS}", "must be a mapping"),
        (f"title: x\nevaluation: {{suite: clean}}\n{GROUPS}", "evaluation must be a list"),
        (f"title: x\npaper_ratio: [1]\n{GROUPS}", "paper_ratio must be a mapping"),
        (f"title: x\npaper_ratio: {{metric: a}}\n{GROUPS}", "has no method"),
    ],
)
def test_a_wrong_study_file_is_one_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_study(str(path))
    assert expected in the_line(caught)


@pytest.mark.parametrize(
    "name", ["../x", "x", "a/b/c", "a/-b", "a/b..c", "a/b--c", "a b/c", "a/", "é/x", "a/" + "b" * 99]
)
def test_names_that_the_hub_refuses(name: str) -> None:
    assert not is_repo_name(name)


@pytest.mark.parametrize("name", ["me/x", "me_2/preactresnet8.patchup-v1", "A/b"])
def test_names_that_the_hub_takes(name: str) -> None:
    assert is_repo_name(name)
