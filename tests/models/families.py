"""One small model of every timm family, what its default sites give, and the README's table of it.

Families are timm's own modules, so one that timm adds later is tried as well: by the rules of ``trials``, unless
``KNOWN`` says how to make it smaller. ``python -m tests.models.families`` prints the table for README.md.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import timm
import torch
from torch import Tensor, nn

from timm_patchup import PatchUp
from timm_patchup.core.method import INPUT
from timm_patchup.core.probe import probe

NUM_CLASSES = 10
BATCH_SIZE = 3
SMALL = 64
# Parts of the names that timm gives to small models, smallest first.
SMALL_NAMES = ("test_", "atto", "femto", "pico", "nano", "xx", "tiny", "micro", "small", "_050", "_s")
BEGIN, END = "<!-- reach:begin -->", "<!-- reach:end -->"


@dataclass(frozen=True)
class Trial:
    """How a family is tried: which model, made with what, on square images of which size."""

    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = SMALL


@dataclass(frozen=True)
class Outcome:
    """What the default sites of a family's model give.

    Attributes:
        gives: ``"NCHW"``, ``"NHWC"`` or both; where the model cannot be mixed inside, what it gives instead.
        sites: the sites that can be mixed.
        error: the message where the default sites cannot be used, None where they can.
    """

    gives: str
    sites: tuple[str, ...]
    error: str | None = None


_FLAT = (1, 1, 1, 1)
_TINY_SWIN = {"depths": _FLAT, "embed_dim": 24, "img_size": SMALL}
_TINY_VIT = {"depth": 2, "embed_dim": 96, "num_heads": 2}
# Only families for which the rules of `trials` choose a model that is slow.
KNOWN = {
    "beit": Trial("beit_base_patch16_224", {**_TINY_VIT, "img_size": SMALL}),
    "convmixer": Trial("convmixer_1024_20_ks9_p14", {}, 56),
    "davit": Trial("davit_tiny", {"depths": _FLAT, "embed_dims": (16, 32, 64, 128), "num_heads": (1, 1, 2, 2)}),
    "deepseek_vit": Trial("deepseek_vit_412m", _TINY_VIT, 126),
    "gemma4_vit": Trial("gemma4_vit_167m", {"depth": 1}, 96),
    "hiera": Trial("hiera_tiny_224", {"stages": _FLAT, "embed_dim": 24, "img_size": SMALL}),
    "inception_resnet_v2": Trial("inception_resnet_v2", {}, 80),
    "inception_v3": Trial("inception_v3", {}, 80),
    "inception_v4": Trial("inception_v4", {}, 80),
    "mobilenetv5": Trial("mobilenetv5_base", {"channel_multiplier": 0.25}),
    "naflexvit": Trial("naflexvit_base_patch16_gap", _TINY_VIT),
    "qwen3_vit": Trial("qwen3_vit_88m", _TINY_VIT),
    "regnet": Trial("regnetx_002"),
    "repvit": Trial("repvit_m1", {"depth": _FLAT}),
    "res2net": Trial("res2next50", {"layers": _FLAT}),
    "senet": Trial("legacy_seresnet18"),
    "sequencer": Trial("sequencer2d_s", {"layers": _FLAT, "img_size": SMALL}),
    "sknet": Trial("skresnet18", {"layers": _FLAT}),
    "swin_transformer": Trial("swin_tiny_patch4_window7_224", _TINY_SWIN),
    "swin_transformer_v2": Trial("swinv2_tiny_window8_256", _TINY_SWIN),
    "swin_transformer_v2_cr": Trial("swinv2_cr_tiny_224", _TINY_SWIN),
    "tiny_vit": Trial("tiny_vit_5m_224", {"depths": _FLAT}),
    "tresnet": Trial("tresnet_m", {"width_factor": 0.25}),
    "vgg": Trial("vgg11", {"mlp_ratio": 0.125}),
    "vision_transformer_sam": Trial(
        "samvit_base_patch16_224", {**_TINY_VIT, "img_size": SMALL, "global_attn_indexes": [1]}
    ),
}


def families() -> list[str]:
    """Return the names of all families of the installed timm, without those that others added to its registry."""
    return sorted(family for family in timm.list_modules() if find_spec(f"timm.models.{family}"))


def trials(family: str) -> list[Trial]:
    """Return how to try a family, in order: a small model on small images, then on images of its own size."""
    if family in KNOWN:
        return [KNOWN[family]]

    def rank(name: str) -> int:
        return next((i for i, part in enumerate(SMALL_NAMES) if part in name), len(SMALL_NAMES))

    name = min(timm.list_models(module=family), key=rank)
    config = timm.get_pretrained_cfg(name)
    small = Trial(name, {"img_size": SMALL} if config.fixed_input_size else {})
    return [small, Trial(name, {}, config.input_size[-1])]


def build(family: str) -> tuple[Trial, nn.Module]:
    """Make the model of a family's first trial that runs, in train mode.

    Zero weights, with which some families start, become noise: behind them no gradient flows and no bypass shows.
    """
    *smaller, last = trials(family)
    for trial in [*smaller, last]:
        torch.manual_seed(0)
        try:
            model = timm.create_model(trial.model, num_classes=NUM_CLASSES, **trial.settings)
            with torch.no_grad():
                model.eval()(images(trial))
        except (AssertionError, RuntimeError, TypeError):
            if trial is last:
                raise
            continue
        break
    with torch.no_grad():
        for weight in model.parameters():
            if weight.abs().max() < 0.01:
                weight.normal_(std=0.1)
    return trial, model.train()


def images(trial: Trial) -> Tensor:
    return torch.randn(BATCH_SIZE, 3, trial.size, trial.size)


@cache
def outcome(family: str) -> Outcome:
    """Look at what the default sites of a family give."""
    trial, model = build(family)
    try:
        maps = probe(model, PatchUp(model).sites, images(trial))
    except ValueError as error:
        return Outcome(_what_instead(str(error)), suggested_sites(str(error)), str(error))
    layouts = {"NHWC" if layout.nhwc else "NCHW" for name, layout in maps.items() if name != INPUT}
    return Outcome(" and ".join(sorted(layouts)), tuple(maps))


def suggested_sites(error: str) -> tuple[str, ...]:
    """Return the sites that an error of ours says to use instead."""
    found = re.findall(r"sites=\[([^]]*)\]", error)
    return tuple(re.findall(r"'([^']+)'", found[-1])) if found else ()


def _what_instead(error: str) -> str:
    if "feature_info" in error:
        return "no named stages"
    if "gives tokens" in error:
        return "tokens"
    return "several tensors" if re.search(r"gives a \w+ of \d", error) else "something else"


def render_table() -> str:
    """Return the README's table with its markers: the families that train with ``sites=None``, and what others give."""
    rows: dict[tuple[bool, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for family in families():
        found = outcome(family)
        rows[found.error is not None, found.gives, found.sites].append(family)
    trained = sum(len(names) for (failed, _, _), names in rows.items() if not failed)
    lines = [
        BEGIN,
        f"timm {timm.__version__}: {len(families())} families tried, {trained} train with `sites=None`, "
        f"{len(families()) - trained} end in an error that says what the model gives and which sites to name instead.",
        "",
        "| `sites=None` | the model gives | sites that can be mixed | families | |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for (failed, gives, sites), names in sorted(rows.items(), key=lambda row: (row[0][0], -len(row[1]), row[0])):
        verdict = "error" if failed else "trains"
        lines.append(f"| {verdict} | {gives} | {', '.join(sites)} | {len(names)} | {', '.join(names)} |")
    return "\n".join([*lines, END])


if __name__ == "__main__":
    print(render_table())
