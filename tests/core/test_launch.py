"""The launcher runs a script written like timm's train.py, unmodified, with our flags in its parser and args.yaml.

timm's own script is not in its wheel: ``train_script`` is a stand-in for it, see ``tests/support/launching.py``.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.launching import run_command
from timm_patchup.launch import main


def launch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, "-m", "timm_patchup.launch", *words)


def test_settings_land_in_args_yaml_and_come_back_through_it(train_script: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "args.yaml", tmp_path / "again.yaml"
    flags = ["--mix", "hard_patchup", "--mix-gamma", "0.4", "--mix-sites", "stem", "stage1"]
    flags += ["--mix-block-size", "5", "3"]
    done = launch(train_script, "--output", first, *flags)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout
    settings = yaml.safe_load(first.read_text())
    assert settings["mix"] == "hard_patchup"
    assert settings["mix_gamma"] == 0.4
    assert settings["mix_sites"] == ["stem", "stage1"]
    assert settings["mix_block_size"] == [5, 3]
    assert settings["mix_prob"] == 0.7, "what was not given is written out, too"
    done = launch(train_script, "-c", first, "--output", second)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(second.read_text()) == {**settings, "output": str(second)}


def test_several_methods_come_back_through_args_yaml(train_script: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "args.yaml", tmp_path / "again.yaml"
    flags = ["--mix", "hard_patchup", "cutmix", "--mix-weights", "2", "1", "--mix-prob", "9e-1"]
    flags += ["--mix-settings", "hard_patchup.gamma=0.4", "hard_patchup.sites=[stem,stage1]"]
    done = launch(train_script, "--output", first, *flags)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout
    settings = yaml.safe_load(first.read_text())
    assert (settings["mix"], settings["mix_weights"]) == (["hard_patchup", "cutmix"], [2.0, 1.0])
    own = settings["mix_settings"]
    assert own["cutmix"] == {"alpha": 1.0, "prob": 0.9}
    assert (own["hard_patchup"]["gamma"], own["hard_patchup"]["sites"]) == (0.4, ["stem", "stage1"])
    assert settings["mix_prob"] is None, "everything is under the name of its method"
    done = launch(
        train_script, "-c", first, "--output", second, "--mix-prob", "0.5", "--mix-settings", "cutmix.alpha=2"
    )
    assert done.returncode == 0, done.stderr
    again = yaml.safe_load(second.read_text())
    assert again["mix_settings"]["cutmix"] == {"alpha": 2.0, "prob": 0.5}
    assert again["mix_settings"]["hard_patchup"] == own["hard_patchup"] | {"prob": 0.5}, "flags override the file"
    done = launch(train_script, "--recipe", "imagenet_none", "--model", "test_resnet", "--output", first, *flags[:3])
    assert done.returncode == 0, done.stderr
    from_recipe = yaml.safe_load(first.read_text())["mix_settings"]
    assert (from_recipe["hard_patchup"]["prob"], from_recipe["cutmix"]["prob"]) == (0.6, 1.0), "as for ImageNet"


def test_numbers_may_be_written_with_an_exponent(train_script: Path, tmp_path: Path) -> None:
    """YAML 1.1 takes 5e-1 for a word, in a flag as in a file."""
    out, own = tmp_path / "args.yaml", tmp_path / "own.yaml"
    own.write_text("mix: hard_patchup\nmix_prob: 9e-1\n")
    done = launch(train_script, "-c", own, "--mix-gamma", "5e-1", "--output", out)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout
    settings = yaml.safe_load(out.read_text())
    assert (settings["mix_gamma"], settings["mix_prob"]) == (0.5, 0.9)
    assert isinstance(settings["mix_gamma"], float)


def test_arguments_of_the_first_edition_are_read(train_script: Path, tmp_path: Path) -> None:
    """It stored an alpha for hard PatchUp, which never had an effect there."""
    first, out = tmp_path / "first.yaml", tmp_path / "args.yaml"
    first.write_text("mix: hard_patchup\nmix_alpha: 2.0\nmix_gamma: 0.4\nmix_block_size: [7]\nmix_sites: [stem]\n")
    done = launch(train_script, "-c", first, "--output", out)
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load(out.read_text())
    assert (settings["mix"], settings["mix_gamma"], settings["mix_sites"]) == ("hard_patchup", 0.4, ["stem"])
    assert settings["mix_alpha"] is None
    first.write_text("mix: soft_patchup\nmix_alpha: 1.5\n")
    done = launch(train_script, "-c", first, "--output", out)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(out.read_text())["mix_alpha"] == 1.5, "of soft PatchUp it is a setting"


def test_keys_of_a_file_that_the_script_leaves_out(train_script: Path, tmp_path: Path) -> None:
    """A script may drop keys that its parser does not know, and it does not know ours when it reads the file."""
    text, all_keys = train_script.read_text(), "**yaml.safe_load(f)"
    assert all_keys in text
    own_only = "**{k: v for k, v in yaml.safe_load(f).items() if '--' + k in parser._option_string_actions}"
    train_script.write_text(text.replace(all_keys, own_only))
    own, out = tmp_path / "own.yaml", tmp_path / "args.yaml"
    own.write_text("mix: hard_patchup\nmix_gamma: 0.4\nseed: 7\n")
    done = launch(train_script, "-c", own, "--mix-prob", "0.9", "--output", out)
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load(out.read_text())
    assert [settings[key] for key in ("mix", "mix_gamma", "mix_prob", "seed")] == ["hard_patchup", 0.4, 0.9, 7]


def test_a_file_whose_aliases_expand_without_end_is_one_line(train_script: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 9)]
    own.write_text("\n".join(["a0: &a0 [x]", *levels, "mix: hard_patchup", "mix_gamma: *a8"]))
    done = launch(train_script, "-c", own, "--output", tmp_path / "a")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "aliases" in line


def test_a_flag_given_twice_is_noted(train_script: Path, tmp_path: Path) -> None:
    out = tmp_path / "args.yaml"
    done = launch(train_script, "--output", out, "--mix", "none", "--mix", "cutmix", "--seed", "1", "--seed", "2")
    assert done.returncode == 0, done.stderr
    for flag in ("--mix", "--seed"):
        assert f"timm-patchup: {flag} is given twice: the last one holds" in done.stderr.splitlines()
    settings = yaml.safe_load(out.read_text())
    assert (settings["mix"], settings["seed"]) == ("cutmix", 2)


def test_misspelt_keys_of_a_file_are_refused(train_script: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("mix: hard_patchup\nmix_gama: 0.4\n")
    done = launch(train_script, "-c", own, "--output", tmp_path / "a")
    assert done.returncode == 2
    assert (
        done.stderr
        == "timm-patchup: mix_gama is not a setting of any method; did you mean mix_gamma or mix_lam or mix_mask?\n"
    )


def test_console_command_is_the_same(train_script: Path, tmp_path: Path) -> None:
    done = run_command(
        Path(sys.executable).with_name("timm-patchup"), train_script, "--output", tmp_path / "a", "--mix", "none"
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: ClassificationTask" in done.stdout, "the mix none is timm's own task"


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes(train_script: Path, tmp_path: Path, launcher: str) -> None:
    if launcher == "torchrun":
        start = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    else:
        start = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    flags = ["--output", tmp_path / "a", "--mix", "soft_patchup"]
    done = run_command(sys.executable, "-m", *start, "-m", "timm_patchup.launch", train_script, *flags)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: MixTask" in done.stdout
    assert "rank 1 of 2: MixTask" in done.stdout


@pytest.mark.parametrize("flags", [["--aug-splits", "3", "--jsd-loss"], ["--aug-splits", "2"]])
def test_augmentation_splits(train_script: Path, tmp_path: Path, flags: list[str]) -> None:
    """The mixer learns of them: it refuses the JSD loss of another number of splits, and targets that differ."""
    done = launch(train_script, "--output", tmp_path / "a", "--mix", "hard_patchup", *flags)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout


def test_distillation_at_the_input(train_script: Path, tmp_path: Path) -> None:
    flags = ["--mix", "hard_patchup", "--mix-sites", "input", "--kd-model-name", "test_resnet"]
    done = launch(train_script, "--output", tmp_path / "a", *flags)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixLogitDistillationTask" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--mix or --recipe is missing: choose a method from"),
        (["--mix"], "argument --mix: expected at least one argument"),
        (["--recipe"], "argument --recipe: expected one argument"),
        (["--mix", "cutmix", "--mix-gama", "0.5"], "unrecognized arguments: --mix-gama 0.5"),
        (["--mix", "cutmix", "--mix-settings", "prob=1"], "--mix-settings needs METHOD.SETTING=VALUE"),
        (["--mix", "hrd_patchup"], "did you mean hard_patchup"),
        (["--mix", "hard_patchup", "--mix-gamma", "2"], "mix_gamma must be a number in [0, 1], got 2"),
        (["--mix", "hard_patchup", "--mix-gamma", "much"], "mix_gamma must be a number in [0, 1], got 'much'"),
        (["--mix", "hard_patchup", "--mix-sites", "stagee1"], "unknown site 'stagee1'"),
        (["--mix", "hard_patchup", "--mix-sites", "stem", "fc"], "gives a tensor (B, 10), mixing needs maps"),
        (["--mix", "hard_patchup", "--kd-model-name", "test_vit"], "distillation cannot be combined with hard_patchup"),
        (["--mix", "hard_patchup", "--mixup-off-epoch", "3"], "--mixup-off-epoch cannot be combined"),
        (["--mix", "cutmix", "mixup", "--mixup-off-epoch", "3"], "combined with --mix cutmix mixup: timm passes"),
        (["--mix", "cutmix", "mixup", "--mix-gamma", "0.5"], "mix_gamma is not a setting of cutmix or mixup"),
        (["--mix", "cutmix", "--mix-weights", "2"], "mix_weights has no effect with one method"),
        (["--mix", "none", "--mix-gamma", "0.5"], "mix_gamma is not a setting of none, which has no settings"),
        (["--mix", "hard_patchup", "--mix-alpha", "2.0"], "mix_alpha is not a setting of hard_patchup; it has mix_"),
        (
            ["--mix", "dropblock", "--mix-block-size", "5", "3", "--mix-prob", "2"],
            "mix_block_size must be a whole number of at least 1, got [5, 3]\nmix_prob must be a number in [0, 1], got",
        ),
    ],
)
def test_a_bad_call_ends_in_clear_lines(train_script: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    done = launch(train_script, "--output", tmp_path / "a", *flags)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("timm-patchup: ")]
    problems = message.split("\n")
    assert len(lines) == len(problems)
    assert all(problem in line for problem, line in zip(problems, lines))
    assert "Traceback" not in done.stderr
    assert "usage" not in done.stderr + done.stdout
    assert not (tmp_path / "a").exists()


VIT = ["--model", "test_vit", "--model-kwargs", "img_size=64", "patch_size=8"]


def test_a_vit_trains(train_script: Path, tmp_path: Path) -> None:
    done = launch(train_script, "--output", tmp_path / "a", "--mix", "hard_patchup", "--mix-block-size", "2", *VIT)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1: MixTask" in done.stdout


def test_sites_are_named_in_flags(train_script: Path, tmp_path: Path) -> None:
    done = launch(train_script, "--output", tmp_path / "a", "--mix", "hard_patchup", *VIT, "patch_drop_rate=0.5")
    assert done.returncode == 2
    assert "patch_drop_rate=0. Give --mix-sites input stem, which can be mixed" in done.stderr
    assert done.stderr.count("timm-patchup: ") == 1


def test_a_script_that_mixes_nothing_is_an_error(train_script: Path, tmp_path: Path) -> None:
    done = launch(train_script, "--output", tmp_path / "a", "--mix", "hard_patchup", "--no-task")
    assert done.returncode == 1
    assert "nothing was mixed" in done.stderr


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_a_script_that_never_parses_is_an_error(tmp_path: Path, end: str) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"print('trained')\n{end}\n")
    done = launch(script, "--mix", "hard_patchup")
    assert done.returncode == 1
    assert done.stdout == "trained\n"
    expected = "own.py ended without parsing arguments with timm's --model: nothing was mixed"
    assert done.stderr.splitlines()[-1] == f"timm-patchup: {expected}"


def test_missing_script_and_help(tmp_path: Path, train_script: Path) -> None:
    done = launch(tmp_path / "no.py", "--mix", "hard_patchup")
    assert done.returncode == 2
    assert "no such script" in done.stderr
    done = launch(train_script, "--help")
    assert done.returncode == 0
    assert "--mix-block-size" in done.stdout
    assert "--kd-model-name" in done.stdout


@pytest.mark.parametrize("words", [[], ["--mix", "hard_patchup", "train.py"]])
def test_without_a_script(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    line = "timm-patchup: the script comes first: timm-patchup path/to/train.py --mix NAME [the script's own flags]\n"
    assert (printed.out, printed.err) == ("", line)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_a_recipe_is_handed_to_the_script(train_script: Path, tmp_path: Path) -> None:
    out = tmp_path / "args.yaml"
    done = launch(train_script, "--recipe", "imagenet_hard_patchup", "--model", "test_resnet", "--output", out)
    assert done.returncode == 0, done.stderr
    assert "MixTask" in done.stdout
    written = yaml.safe_load(out.read_text())
    assert (written["mix"], written["mix_prob"], written["mix_gamma"]) == ("hard_patchup", 0.6, 0.5)
    assert written["model"] == "test_resnet", "a flag overrides the recipe"
    assert written["seed"] == 0, "a key that the script knows comes from the recipe"
    assert "timm's script does not know lighting: 0.1 is left out" in done.stderr
    wrong = launch(train_script, "--recipe", "imagenet_hard_patchp", "--output", out)
    assert wrong.returncode == 2
    assert "did you mean imagenet_hard_patchup" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


def test_another_method_takes_its_own_settings_from_the_recipe(train_script: Path, tmp_path: Path) -> None:
    out = tmp_path / "args.yaml"
    call = ["--recipe", "imagenet_hard_patchup", "--model", "test_resnet", "--output", out]
    for mix, settings in (("soft_patchup", (1.0, 0.6)), ("none", (None, None))):
        done = launch(train_script, *call, "--mix", mix)
        assert done.returncode == 0, done.stderr
        written = yaml.safe_load(out.read_text())
        assert (written["mix_prob"], written["mix_gamma"]) == settings


def test_a_file_of_the_user_overrides_the_recipe(train_script: Path, tmp_path: Path) -> None:
    out, own = tmp_path / "args.yaml", tmp_path / "own.yaml"
    own.write_text("model: test_resnet\nseed: 5\nmix_gamma: 0.11\n")
    done = launch(train_script, "-c", own, "--recipe", "imagenet_hard_patchup", "--output", out)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load(out.read_text())
    assert (written["model"], written["seed"], written["mix_gamma"]) == ("test_resnet", 5, 0.11)
    assert written["mix_prob"] == 0.6, "what the file does not state comes from the recipe"
