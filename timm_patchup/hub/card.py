"""The model card: what the model is, how to load it, what it scores, and how to train it again."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..data.source import HUB_PREFIX
from ..recipe import Recipe

REPORT = "report"  # folder of the evaluation, in a run and in an export
# Stands for the repository until a push knows it.
REPO_PLACEHOLDER = "USER/NAME"
_FASHION_MNIST = "zalando-datasets/fashion_mnist"
_CITATION = """```bibtex
@inproceedings{faramarzi2022patchup,
  title     = {PatchUp: A Feature-Space Block-Level Regularization Technique for Convolutional Neural Networks},
  author    = {Faramarzi, Mojtaba and Amini, Mohammad and Badrinaaraayanan, Akilesh and Verma, Vikas
               and Chandar, Sarath},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2022}
}
```"""
_FILES = {
    "model.safetensors": "the weights",
    "config.json": "timm's configuration; the method's settings under `patchup`",
    "recipe.yaml": "every setting of the training",
    "summary.csv": "losses and errors of each epoch",
    "results.json": "the test results, and which weights they are of",
    "curves.png": "the same as a picture",
}


@dataclass(frozen=True)
class Facts:
    """What a card tells.

    Args:
        recipe: the resolved recipe.
        results: the results of the run.
        config: what config.json holds.
        package: what to import before timm knows the network, None for timm's own.
        report: files of the evaluation, relative to the folder.
        evaluation: what its report.md says, empty where there is none.
        base_model: the weights that training started from, on the Hub.
    """

    recipe: Recipe
    results: dict[str, Any]
    config: dict[str, Any]
    package: str | None
    report: Sequence[str]
    evaluation: str
    base_model: str | None

    @property
    def name(self) -> str:
        return f"{self.config['architecture']}.{self.config['pretrained_cfg']['tag']}"

    @property
    def dataset_id(self) -> str | None:
        """The data set on the Hub, if that is where it is."""
        if self.recipe.dataset == "fashion_mini":
            return _FASHION_MNIST
        return self.recipe.dataset.removeprefix(HUB_PREFIX) if self.recipe.dataset.startswith(HUB_PREFIX) else None

    @property
    def dataset_title(self) -> str:
        if self.recipe.dataset == "fashion_mini":
            return "the part of Fashion-MNIST in timm_patchup"
        return self.dataset_id or "local data"


def make_card(facts: Facts) -> str:
    """Return README.md: metadata for the Hub, then text."""
    from huggingface_hub import ModelCard, ModelCardData

    recipe = facts.recipe
    tags = ["image-classification", "timm", "timm_patchup", recipe.mix.replace("_", "-")]
    data = ModelCardData(
        library_name="timm",
        pipeline_tag="image-classification",
        license=facts.config["pretrained_cfg"]["license"],
        tags=tags + ["patchup"] * recipe.mix.endswith("patchup"),
        datasets=[facts.dataset_id] if facts.dataset_id else None,
        metrics=["accuracy"],
        base_model=facts.base_model,
        model_name=facts.name,
        eval_results=_eval_results(facts),
    )
    sections = [_introduction(facts), _usage(facts), _scores(facts), _training(facts), _files(facts), _cite(facts)]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"))


def _eval_results(facts: Facts) -> list[Any]:
    from huggingface_hub import EvalResult

    names = {"top1": "top-1 accuracy, %"} | ({"top5": "top-5 accuracy, %"} if facts.recipe.num_classes > 5 else {})
    return [
        EvalResult(
            task_type="image-classification",
            task_name="Image classification",
            dataset_type=facts.dataset_id or "imagefolder",
            dataset_name=facts.dataset_title,
            dataset_config=facts.recipe.dataset_config,
            dataset_split=facts.recipe.val_split,
            metric_type="accuracy",
            metric_name=name,
            metric_value=round(facts.results["test"][key], 4),
        )
        for key, name in names.items()
    ]


def _introduction(facts: Facts) -> str:
    recipe, weights = facts.recipe, facts.results["weights"]
    how = "without a regulariser" if recipe.mix == "none" else f"with `{recipe.mix}`"
    average = "the average over training (EMA)" if "EMA" in weights else "those of the model itself, not of an average"
    start = f", from the weights of [{facts.base_model}](https://huggingface.co/{facts.base_model})"
    return (
        f"# {facts.name}\n\n"
        f"`{facts.config['architecture']}`, {facts.results['parameters']:,} parameters, trained {how} on "
        f"{facts.dataset_title}{start if facts.base_model else ''}, by "
        f"[timm](https://github.com/huggingface/pytorch-image-models) and `timm_patchup`.\n\n"
        f"Weights: {average}, after epoch {facts.results['best_epoch']} of {facts.results['epochs']} "
        f"({'the best on held-out images' if facts.results['chosen_on'] == 'validation' else 'the last'})."
    )


def _usage(facts: Facts) -> str:
    mode = "RGB" if facts.recipe.input_size[0] == 3 else "L"
    lines = ["import timm", "import torch", "from PIL import Image"]
    lines += [f"import {facts.package}  # registers {facts.config['architecture']}"] if facts.package else []
    lines += [
        "",
        f'model = timm.create_model("hf-hub:{REPO_PLACEHOLDER}", pretrained=True).eval()',
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)",
        "with torch.inference_mode():",
        f'    logits = model(transform(Image.open("image.png").convert("{mode}"))[None])',
    ]
    if "label_names" in facts.config:
        lines.append('print(model.pretrained_cfg["label_names"][logits.argmax().item()])')
    need = (
        "Nothing but timm is needed: the network is one of its own."
        if facts.package is None
        else f"`import {facts.package}` comes first (`pip install {facts.package.replace('_', '-')}`): it registers "
        f"the network with timm. Without it timm says `Unknown model ({facts.config['architecture']})`."
    )
    return "## Use\n\n" + need + "\n\n```python\n" + "\n".join(lines) + "\n```"


def _scores(facts: Facts) -> str:
    test, recipe = facts.results["test"], facts.recipe
    part = " a part of" if recipe.limit is not None else ""
    rows = ["| test error, % | top-1, % | top-5, % | NLL | images |", "| --- | --- | --- | --- | --- |"]
    rows.append(
        f"| {test['error']:.2f} | {test['top1']:.2f} | {test['top5']:.2f} | {test['loss']:.4f} | {test['count']} |"
    )
    text = f"## Results\n\nOn{part} the split `{recipe.val_split}`, tested once.\n\n" + "\n".join(rows)
    text += "\n\n![curves](curves.png)"
    page = _deeper(facts.evaluation)
    pictures = [f"![{PurePosixPath(name).stem}]({name})" for name in facts.report if name.endswith((".png", ".svg"))]
    tables = [f"- [{name}]({name})" for name in facts.report if not name.endswith((".png", ".svg"))]
    if tables or pictures:
        parts = [page, *(picture for picture in pictures if picture not in page), "\n".join(tables)]
        text += "\n\n### Evaluation\n\n" + "\n\n".join(part for part in parts if part)
    return text


def _deeper(page: str) -> str:
    """Return report.md as a part of the card: without its title, and with its pictures where they lie."""
    page = re.sub(r"^# .*\n+", "", page, count=1)
    page = re.sub(r"^## ", "#### ", page, flags=re.MULTILINE)
    return re.sub(r"!\[(\w+)\]\((\w+\.png)\)", rf"![\1]({REPORT}/\2)", page).strip()


def _training(facts: Facts) -> str:
    recipe = facts.recipe
    settings = ", ".join(f"{name} {value}" for name, value in recipe.mix_settings.items())
    rows = [
        f"| method | {recipe.mix}{f': {settings}' if settings else ''} |",
        f"| epochs, batch | {recipe.epochs}, {recipe.batch_size} |",
        f"| optimiser | {recipe.opt}, lr {recipe.lr}, momentum {recipe.momentum}, weight decay {recipe.weight_decay} |",
        f"| schedule | {recipe.sched} |",
        f"| images | {' x '.join(map(str, recipe.input_size))} |",
        f"| seed | {recipe.seed} |",
    ]
    command = "accelerate launch -m timm_patchup.training --recipe recipe.yaml"
    return "## Training\n\n| | |\n| --- | --- |\n" + "\n".join(rows) + f"\n\nAgain: `{command}`."


def _files(facts: Facts) -> str:
    rows = [f"| `{name}` | {what} |" for name, what in _FILES.items()]
    rows += ["| `report/` | tables and pictures of the evaluation |"] if facts.report else []
    return "## Files\n\n| file | what it is |\n| --- | --- |\n" + "\n".join(rows)


def _cite(facts: Facts) -> str:
    return f"## Citation\n\nThe method PatchUp and the experiments that the recipes follow:\n\n{_CITATION}"
