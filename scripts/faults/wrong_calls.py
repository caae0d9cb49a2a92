"""Calls that are wrong, each in one way: every key and setting with values that it does not take, and the rest."""

from timm_patchup.core.method import list_methods, method_settings
from timm_patchup.core.settings import settings_of
from timm_patchup.recipe import Recipe

LONG = "n" * 300
WRONG_TRAINING = [
    "--dataset|hfds/",
    "--dataset|",
    "--dataset|cifar",
    "--model|vit_base_patch16_224",
    "--model|nosuch",
    f"--model|{LONG}",
    "--model|a\nb",
    "--model-kwargs|noequals",
    "--model-kwargs|nosuch=1",
    "--torchcompile|nosuch",
    "--aa|rand-mXX",
    "--aa|nosuch",
    "--aa|rand-m9-q3",
    "--mix|nosuch",
    "--opt|nosuch",
    "--opt|",
    "--workers|1000",
    "--workers|-1",
    "--recipe|",
    "--recipe|nosuch",
    f"--recipe|{LONG}",
    "--recipe|nosuch.yaml",
    "--recipe|a\nb",
    "--experiment|",
    f"--experiment|{LONG}",
    "--experiment|a\nb",
    "--experiment|a/b",
    "--experiment|..",
    "--output|/proc",
    "--output|/proc/nosuch",
    "--output|/dev/null",
    "--output|",
    f"--output|{LONG}",
    "--resume|nosuch",
    "--resume|",
    "--resume|--overwrite",
    "--push-to-hub|../x",
    "--push-to-hub|x",
    "--push-to-hub|a/b/c",
    "--push-to-hub|a/-b",
    "--push-to-hub|a/b..c",
    "--data-dir|nosuch",
    "--data-dir|",
    "--track|nosuch",
    "--threads|0",
    "--threads|x",
    "--nosuch|1",
    "nosuch",
    "--batch-size|7|--grad-accum-steps|2",
    "--batch-size|100000",
    "--input-size|3|32",
    "--decay-rate|0.3",
    "--warmup-lr|0.3",
    "--model-ema-decay|0.9",
    "--clip-mode|agc",
    "--amp-dtype|float16",
    "--opt-betas|0.9|0.9",
    "--remode|const",
    "--crop-pct|0.9",
    "--scale|1|0.5",
    "--num-classes|3",
    "--train-split|nosuch",
    "--val-split|nosuch",
    "--input-key|nosuch",
    "--target-key|nosuch",
    "--train-per-class|9999",
]
WRONG_EVALUATIONS = [
    "",
    "--model|nosuch_model",
    "--model|local-dir:nosuch",
    "--model|hf-hub:nosuch",
    "--model|a/b/c",
    "--suite|nosuch|--model|resnet18",
    "--model|resnet18|--data|nosuch",
    "--model|resnet18|--limit|0",
    "--model|resnet18|--seed|-1",
    "--model|resnet18|--batch-size|x",
    "--model|resnet18|--nosuch",
    f"--model|{LONG}",
    "--model|a\nb",
]
WRONG_PUSHES = [
    "",
    "nosuch|--repo|a/b",
    "nosuch|--repo|../x",
    ".|--repo|a/b",
    ".|--repo|x",
    ".|--nosuch",
    f"{LONG}|--repo|a/b",
]
WRONG_STUDIES = [
    "",
    "--study|nosuch",
    "--study|",
    "--study|nosuch.yaml",
    f"--study|{LONG}",
    "--study|fashion_mini|--seeds|0",
    "--study|fashion_mini|--jobs|-1",
    "--study|fashion_mini|--data-dir|nosuch",
    "--study|fashion_mini|--nosuch",
    "--study|fashion_mini|--|--nosuch|1",
    "--study|fashion_mini|--|--epochs|x",
    "--study|fashion_mini|--corrupted|nosuch",
    "--study|fashion_mini|--limit|x",
]
WRONG = {
    "train.py": WRONG_TRAINING,
    "evaluate.py": WRONG_EVALUATIONS,
    "push_to_hub.py": WRONG_PUSHES,
    "study.py": WRONG_STUDIES,
}


def wrong_calls() -> list[tuple[str, list[str]]]:
    """Return commands and their words."""
    calls: list[tuple[str, list[str]]] = []
    for name, key in settings_of(Recipe).items():
        flag = f"--{name.replace('_', '-')}"
        if key.types[0] is bool:
            words = [[f"{flag}=1"], [flag, "yes"]]
        elif key.types[0] is str:
            words = [[flag], [flag + "x", "1"]]
        elif "dict" in str(key.type):
            words = [[flag, word] for word in ("noequals", "=1", "a b=1")]
        else:
            words = [[flag, word] for word in ("", "nan", "-inf", "[", "x y", "{a: 1}", "1e999")]
        calls += [("train.py", own) for own in words]
    for method in list_methods():
        for name in method_settings(method):
            words = [["--mix", method, f"--mix-{name.replace('_', '-')}", word] for word in ("nosuch", "-1", "[[1]]")]
            calls += [("train.py", own) for own in words]
    for command, lines in WRONG.items():
        calls += [(command, line.split("|")) for line in lines]
    return calls
