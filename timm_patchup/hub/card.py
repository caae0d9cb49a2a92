"""The model card of an export: what the model is, how to load it, its results, and how to train it again.

The text is made from values only; files are read and written in ``export_files.py``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ..data.source import HUB_PREFIX
from ..recipe import Recipe
from ..report.markdown import code, escape

REPORT = "report"  # folder of the evaluation, in a run and in an export
# Replaced by the name of the repository in a push.
REPO_PLACEHOLDER = "USER/NAME"
_FASHION_MNIST = "zalando-datasets/fashion_mnist"
CITATION = """## Citation

PatchUp, and the experiments that the recipes follow:

```bibtex
@inproceedings{faramarzi2022patchup,
  title     = {PatchUp: A Feature-Space Block-Level Regularization Technique for Convolutional Neural Networks},
  author    = {Faramarzi, Mojtaba and Amini, Mohammad and Badrinaaraayanan, Akilesh and Verma, Vikas
               and Chandar, Sarath},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2022}
}
```"""
_CHOSEN = {"validation": "the best on held-out images", "the test set": "the best on the test set"}
_FILES = {
    "model.safetensors": "the weights",
    "config.json": "timm's configuration; the method's settings under `patchup`",
    "recipe.yaml": "every setting of the training",
    "summary.csv": "losses and errors per epoch",
    "results.json": "the test results, and which weights were tested",
    "curves.png": "a plot of summary.csv",
}
_CONFUSION = {"confusion.png": "the confusion matrix of the test, which is in results.json"}
_MAX_CLASSES_NAMED = 100


@dataclass(frozen=True)
class Facts:
    """What a card is made from.

    Attributes:
        recipe: the resolved recipe.
        results: the results of the run.
        config: the content of config.json.
        package: the package that registers the network with timm, None for timm's own networks.
        report: files of the evaluation, relative to the folder.
        evaluation: the text of its report.md, empty if there is none.
        base_model: Hub name of the pretrained weights, None without any.
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
        """The Hub name of the dataset, None for local data."""
        if self.recipe.dataset == "fashion_mini":
            return _FASHION_MNIST
        return self.recipe.dataset.removeprefix(HUB_PREFIX) if self.recipe.dataset.startswith(HUB_PREFIX) else None

    @property
    def dataset_title(self) -> str:
        if self.recipe.dataset == "fashion_mini":
            return "the part of Fashion-MNIST in timm_patchup"
        is_path = re.search(r"[/\\]|LOCAL_PATH", self.recipe.dataset)  # the second, in a cleaned recipe
        return escape(self.dataset_id or ("local data" if is_path else f"images of its author, {self.recipe.dataset}"))

    @property
    def is_confusion_known(self) -> bool:
        return bool(self.results.get("confusion"))


def make_card(facts: Facts) -> str:
    """Return the text of README.md, with the Hub's metadata at the top."""
    from huggingface_hub import ModelCard, ModelCardData

    recipe = facts.recipe
    tags = ["image-classification", "timm", "timm_patchup", *(re.sub(r"\W|_", "-", name) for name in recipe.methods)]
    data = ModelCardData(
        library_name="timm",
        pipeline_tag="image-classification",
        license=facts.config["pretrained_cfg"]["license"],
        tags=tags + ["patchup"] * any(name.endswith("patchup") for name in recipe.methods),
        datasets=[facts.dataset_id] if facts.dataset_id else None,
        metrics=["accuracy"],
        base_model=facts.base_model,
        model_name=facts.name,
        eval_results=_eval_results(facts),
    )
    sections = [_introduction(facts), _usage(facts), _scores(facts), _training(facts), _files(facts), CITATION]
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
    names = " or ".join(f"`{name}`" for name in recipe.methods)
    several = ", one of them per batch," if len(recipe.methods) > 1 else ""
    how = "without a regulariser" if recipe.mix == "none" else f"with {names}{several}"
    average = (
        "the exponential moving average (EMA)" if "EMA" in weights else "those of the model itself, without averaging"
    )
    start = ""
    if facts.base_model:
        start = f", starting from [{facts.base_model}](https://huggingface.co/{facts.base_model})"
    elif recipe.pretrained_path is not None:
        start = f", starting from the weights in a local file, {code(recipe.pretrained_path)}"
    labels = facts.config.get("label_names") or []
    classes = (
        f" Its {len(labels)} classes: {escape(', '.join(labels))}." if 0 < len(labels) <= _MAX_CLASSES_NAMED else ""
    )
    return (
        f"# {facts.name}\n\n"
        f"`{facts.config['architecture']}`, {facts.results['parameters']:,} parameters, trained {how} on "
        f"{facts.dataset_title}{start}, with "
        f"[timm](https://github.com/huggingface/pytorch-image-models) and `timm_patchup`.{classes}\n\n"
        f"Weights: {average}, after epoch {facts.results['best_epoch']} of {facts.results['epochs']} "
        f"({_CHOSEN.get(facts.results['chosen_on'], 'the last epoch')})."
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
        "Needs only timm."
        if facts.package is None
        else f"Install (`pip install {facts.package.replace('_', '-')}`) and import `{facts.package}` first: it adds "
        f"the network to timm. Without it, timm raises `Unknown model ({facts.config['architecture']})`."
    )
    return "## Use\n\n" + need + "\n\n```python\n" + "\n".join(lines) + "\n```"


def _scores(facts: Facts) -> str:
    test, recipe = facts.results["test"], facts.recipe
    part = "Part of" if recipe.limit is not None else "All of"
    rows = ["| test error, % | top-1, % | top-5, % | NLL | images |", "| --- | --- | --- | --- | --- |"]
    rows.append(
        f"| {test['error']:.2f} | {test['top1']:.2f} | {test['top5']:.2f} | {test['loss']:.4f} | {test['count']} |"
    )
    images = f"the split {escape(recipe.val_split)}"
    if recipe.test_fraction:
        images = f"a stratified {recipe.test_fraction:.0%} of the images, set apart before training"
    text = f"## Results\n\n{part} {images}, {_times_tested(facts)}.\n\n" + "\n".join(rows)
    text += "\n\n![curves](curves.png)" + "\n\n![confusion](confusion.png)" * facts.is_confusion_known
    page = _deeper(facts.evaluation)
    figures = [_link(name, PurePosixPath(name).stem, "!") for name in facts.report if name.endswith((".png", ".svg"))]
    tables = [_link(name, name, "- ") for name in facts.report if not name.endswith((".png", ".svg"))]
    if tables or figures:
        parts = [page, *(figure for figure in figures if figure not in page), "\n".join(tables)]
        text += "\n\n### Evaluation\n\n" + "\n\n".join(part for part in parts if part)
    return text


def _link(name: str, text: str, start: str) -> str:
    """Return a link to a file of the report, or a picture of it: such files may have any names."""
    return f"{start}[{escape(text)}]({quote(name)})"


def _times_tested(facts: Facts) -> str:
    median = facts.results.get("median")
    if median is None:
        return "evaluated once"
    return (
        f"after the last epoch. The median over the last {len(median['epochs'])} epochs, all tested and none chosen: "
        f"error {median['error']:.2f}%, NLL {median['loss']:.4f}"
    )


def _deeper(page: str) -> str:
    """Return report.md as a section of the card: without its title, and with paths to its figures."""
    page = re.sub(r"^# .*\n+", "", page, count=1)
    page = re.sub(r"^## ", "#### ", page, flags=re.MULTILINE)
    return re.sub(r"!\[(\w+)\]\((\w+\.png)\)", rf"![\1]({REPORT}/\2)", page).strip()


def _training(facts: Facts) -> str:
    recipe = facts.recipe
    weights = [""] if recipe.mix_weights is None else [f", weight {weight:g}" for weight in recipe.mix_weights]
    rows = [
        *(_method_row(name + weight, own) for (name, own), weight in zip(recipe.methods.items(), weights)),
        f"| epochs, batch | {recipe.epochs}, {recipe.batch_size} |",
        f"| optimizer | {recipe.opt}, lr {recipe.lr}, momentum {recipe.momentum}, weight decay {recipe.weight_decay} |",
        f"| schedule | {recipe.sched} |",
        f"| images | {' x '.join(map(str, recipe.input_size))} |",
        f"| seed | {recipe.seed} |",
    ]
    table = "## Training\n\n| | |\n| --- | --- |\n" + "\n".join(rows)
    return f"{table}\n\nTrain it again: {_training_command(recipe)}."


def _training_command(recipe: Recipe) -> str:
    command = "python -m timm_patchup.training --recipe recipe.yaml"
    modules = dict.fromkeys(name.partition(":")[0] for name in recipe.methods if ":" in name)
    if not modules:
        return f"`{command}`"
    named = ", ".join(f"`{module}`" for module in modules)
    return f"`{command} --allow-imports`, which runs the code of {named} in your folder or environment; it is not here"


def _method_row(name: str, settings: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"| method | {escape(name)}{f': {escape(listed)}' if listed else ''} |"


def _files(facts: Facts) -> str:
    files = _FILES | (_CONFUSION if facts.is_confusion_known else {})
    rows = [f"| `{name}` | {what} |" for name, what in files.items()]
    rows += ["| `report/` | tables and figures of the evaluation |"] if facts.report else []
    return "## Files\n\n| file | content |\n| --- | --- |\n" + "\n".join(rows)
