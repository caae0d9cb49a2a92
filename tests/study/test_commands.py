"""The commands of the runs of a study, and the flags of study.py."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from tests.study.studying import COUNTS, study_here
from timm_patchup.cli.study import devices
from timm_patchup.cli.study_commands import commands, data_flags, flags
from timm_patchup.cli.train import make_parser
from timm_patchup.errors import UserError
from timm_patchup.study import load_study
from timm_patchup.study.options import StudyOptions


def test_flags_are_words_of_the_command() -> None:
    keys = {"mix_sites": ["stem"], "mix_block_size": [7, 5], "amp": True, "hflip": 0.0, "model_ema": False, "aa": None}
    assert flags({**keys, "model_kwargs": {"stem_stride": 2}}) == shlex.split(
        "--mix-sites stem --mix-block-size 7 5 --amp --hflip 0.0 --no-model-ema --aa none --model-kwargs stem_stride=2"
    )


def test_evaluation_follows_the_training() -> None:
    study = load_study("attacks")
    run = study.runs(1)[0]
    _, evaluation = commands(study, run, StudyOptions(Path("studies/attacks"), limit=50, threads=2))
    assert shlex.join(evaluation) == (
        "python -m timm_patchup.evaluation --model studies/attacks/runs/tiny_imagenet_wrn28_10_none-seed0 "
        "--suite attacks,fgsm --output studies/attacks/reports/tiny_imagenet_wrn28_10_none-seed0 "
        "--limit 50 --threads 2 --eps-space normalised"
    )


def test_evaluations_on_other_numbers_of_images_have_separate_reports() -> None:
    """One report holds results on one set of images, and refuses others."""
    study = load_study("cifar10_scarce_preactresnet18")
    run = study.runs(1)[0]

    def reports(limit: int | None) -> list[tuple[str, str]]:
        options = StudyOptions(Path("s"), limit=limit)
        words = [command for command in commands(study, run, options) if "timm_patchup.evaluation" in command]
        return [(own[own.index("--suite") + 1], own[own.index("--output") + 1]) for own in words]

    whole, few = reports(None)
    assert whole == ("clean,affine,fgsm,activations", f"s/reports/{run.name}")
    assert few == ("corruptions", f"s/reports/{run.name}-1000_images")
    ((_, together),) = reports(500)
    assert together == f"s/reports/{run.name}"


def test_corrupted_images_are_passed_on_and_have_separate_reports(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = load_study("corruptions")
    run = study.runs(1)[0]
    made, ready = StudyOptions(tmp_path), StudyOptions(tmp_path, given={"corrupted": f"{tmp_path}/files/Tiny-C/"})
    assert "--corrupted" not in commands(study, run, made)[1]
    assert commands(study, run, ready)[1][-2:] == ["--corrupted", f"{tmp_path}/files/Tiny-C/"]
    others = [
        StudyOptions(tmp_path, given={"corrupted": where})
        for where in (f"{tmp_path}/Tiny-C", "hfds/a/Tiny-C", "hfds/b/Tiny-C")
    ]
    assert len({options.report(run, study.evaluation[0]) for options in (made, ready, *others)}) == 5, (
        "none is taken for another"
    )
    assert ready.reports.name.startswith("reports_Tiny-C-")

    words = ["--seeds", 1, "--output", tmp_path / "out", "--dry-run", "--corrupted"]
    assert study_here("--study", "corruptions", *words, tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert all(line.endswith(f"--corrupted {tmp_path}") for line in lines)
    assert study_here("--study", "affine", *words, tmp_path) == 2
    assert "--corrupted is for suite corruptions, which affine does not have" in capsys.readouterr().err
    assert study_here("--study", "corruptions", *words, tmp_path / "none") == 2
    assert "none is not a folder; a dataset of the Hub is hfds/OWNER/NAME" in capsys.readouterr().err


def test_local_data(tmp_path: Path) -> None:
    cifar, scarce, options = load_study("cifar"), load_study("cifar10_scarce"), StudyOptions(Path(), data_dir=tmp_path)
    assert data_flags(scarce.runs(1)[0], scarce, options) == ["--data-dir", tmp_path.as_posix()]
    with pytest.raises(UserError, match="needs the folders cifar10, cifar100 in it; cifar10 is missing"):
        data_flags(cifar.runs(1)[0], cifar, options)
    (tmp_path / "cifar10").mkdir()
    for study in (cifar, scarce):
        assert data_flags(study.runs(1)[0], study, options) == ["--data-dir", (tmp_path / "cifar10").as_posix()]


def test_dry_run_prints_the_missing_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert study_here("--study", "affine", "--seeds", 1, "--output", output, "--dry-run", "--", "--amp") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    for line in lines:
        training, evaluation = (shlex.split(part) for part in line.split(" && "))
        assert make_parser().parse_args(training[3:]).amp is True
        assert evaluation[:3] == ["python", "-m", "timm_patchup.evaluation"]
    assert not output.exists(), "a dry run writes nothing"


@pytest.mark.parametrize("joint", [" ", "="])
def test_the_command_in_a_table_has_no_path(joint: str, tmp_path: Path) -> None:
    more = shlex.split(f"--pretrained-path{joint}{tmp_path}/weights.safetensors --dataset hfds/USER/photos")
    assert study_here("--study", "finetune", "--jobs", 0, "--output", tmp_path, "--", *more) == 0
    text = (tmp_path / "finetune" / "results.md").read_text()
    assert f"-- --pretrained-path{joint}weights.safetensors --dataset hfds/USER/photos\n" in text
    assert str(tmp_path) not in text


def test_calls_that_are_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases: list[tuple[list[object], str]] = [
        ([], "--study is missing"),
        (["--study", "cifra"], "did you mean cifar"),
        (["--study", "none.yaml"], "no such file: none.yaml"),
        (["--study", "cifar", "--seeds", 0], "--seeds must be at least 1"),
        (["--study", "cifar", "--jobs", -1], "--jobs must be at least 0"),
        (["--study", "cifar", "--data-dir", tmp_path / "no"], "no such folder"),
        (["--study", "cifar", "--", "--seed", 3], "--seed after -- is set by the study: use --seeds"),
        (["--study", "cifar", "--", "--epoch", 3], "unknown flag --epoch"),
        (["--study", "cifar", "--", "--lr", "-1"], "lr must be a number"),
    ]
    for words, message in cases:
        assert study_here(*words, "--output", tmp_path) == 2 if "--" not in words else study_here(*words) == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_list_of_studies(capsys: pytest.CaptureFixture[str]) -> None:
    assert study_here("--list-studies") == 0
    *listed, others = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(COUNTS)
    assert "figure 1" in others


def test_every_table_and_figure_of_the_paper_has_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """All tables but 9, the schedules of the recipes, and all figures but 2, 3 and 11, which are drawings."""
    assert study_here("--list-studies") == 0
    text = capsys.readouterr().out
    numbered: dict[str, set[int]] = {"table": set(), "figure": set()}
    for kind, numbers in re.findall(r"(table|figure)s? ([\da-h, and to]+)", text):
        numbered[kind] |= {int(number) for number in re.findall(r"\d+", numbers)}
    assert numbered["table"] == set(range(1, 13)) - {9}
    assert numbered["figure"] == set(range(1, 16)) - {2, 3, 11}


def test_space_of_eps_is_normalised_in_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--study", "fgsm", "--seeds", 1, "--output", tmp_path, "--dry-run"]
    assert study_here(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 54
    assert all(line.endswith("--eps-space normalised") for line in lines)
    assert study_here(*words, "--eps-space", "pixels") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith("--eps-space pixels") and "/reports_pixels/" in line for line in lines)
    assert study_here("--study", "affine", "--eps-space", "pixels", "--output", tmp_path, "--dry-run") == 2
    assert "--eps-space is for suite fgsm, which affine does not have" in capsys.readouterr().err


def test_the_script_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["study.py", "--study", "imagenet", "--dry-run"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "study.py"), run_name="__main__")
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_gpus_are_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(1) == []
    assert devices(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert devices(4) == ["5", "7"]
