"""One small model of every timm family, what its default sites give, and the table of it in the documentation.

Families are timm's own modules, so one that timm adds later is tried, too: by the rules of ``trials``, unless ``KNOWN``
has a smaller model of it. ``python -m tests.models.families`` prints the table for ``timm_patchup/methods/README.md``,
which states the release of timm it was recorded with; ``recorded`` reads it.
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

from tests.support.paths import ROOT
from timm_patchup import PatchUp
from timm_patchup.core.layout import FeatureMap
from timm_patchup.core.method import INPUT
from timm_patchup.core.probe import probe
from timm_patchup.errors import SiteError, UserError

NUM_CLASSES = 10
BATCH_SIZE = 3
SMALL = 64
# Parts of the names that timm gives to small models, smallest first.
SMALL_NAMES = ("test_", "atto", "femto", "pico", "nano", "xx", "tiny", "micro", "small", "_050", "_s")
PAGE = ROOT / "timm_patchup" / "methods" / "README.md"
BEGIN, END = "<!-- reach:begin -->", "<!-- reach:end -->"
# What the sites of a model can give, and how the table describes a model that cannot be mixed inside.
KINDS = ("NCHW", "NHWC", "tokens", "several tensors")
INSTEAD = ("no named stages", "something else")


@dataclass(frozen=True)
class Trial:
    """How a family is tried: which model, made with what, and the side of its square images."""

    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = SMALL


@dataclass(frozen=True)
class Outcome:
    """What the default sites of a family's model give.

    Attributes:
        gives: one or more of ``KINDS``; one of ``INSTEAD`` if the model cannot be mixed inside.
        sites: the sites that can be mixed.
        error: the message if the default sites cannot be used, else None.
    """

    gives: str
    sites: tuple[str, ...]
    error: str | None = None


_FLAT = (1, 1, 1, 1)
_TINY_SWIN = {"depths": _FLAT, "embed_dim": 24, "img_size": SMALL}
_TINY_VIT = {"depth": 2, "embed_dim": 96, "num_heads": 2}
# Only families for which the rules of `trials` choose a slow model.
KNOWN = {
    "beit": Trial("beit_base_patch16_224", {**_TINY_VIT, "img_size": SMALL}),
    "convmixer": Trial("convmixer_1024_20_ks9_p14", {}, 56),
    "davit": Trial("davit_tiny", {"depths": _FLAT, "embed_dims": (16, 32, 64, 128), "num_heads": (1, 1, 2, 2)}),
    "deepseek_vit": Trial("deepseek_vit_412m", _TINY_VIT, 126),
    "gemma4_vit": Trial("gemma4_vit_167m", {"depth": 2}, 96),
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
    """Return how to try a family, in order: a small model on small images, then on images of its native size."""

    def rank(name: str) -> int:
        return next((i for i, part in enumerate(SMALL_NAMES) if part in name), len(SMALL_NAMES))

    name = min(timm.list_models(module=family), key=rank)
    config = timm.get_pretrained_cfg(name)
    small = Trial(name, {"img_size": SMALL} if config.fixed_input_size else {})
    by_rule = [small, Trial(name, {}, config.input_size[-1])]
    known = KNOWN.get(family)
    return [known, *by_rule] if known and timm.is_model(known.model) else by_rule


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
        except Exception:  # whatever timm's model makes of arguments or sizes that are not its own
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
    except SiteError as error:
        return Outcome("something else", error.usable, str(error))
    except UserError as error:
        return Outcome("no named stages", (INPUT,), str(error))
    kinds = {_kind(layouts) for name, layouts in maps.items() if name != INPUT}
    return Outcome(" and ".join(kind for kind in KINDS if kind in kinds), tuple(maps))


def _kind(layouts: tuple[FeatureMap, ...]) -> str:
    """Return which of ``KINDS`` a site gives."""
    if len(layouts) > 1:
        return "several tensors"
    if layouts[0].prefix is not None:
        return "tokens"
    return "NHWC" if layouts[0].nhwc else "NCHW"


@dataclass(frozen=True)
class Recorded:
    """The table in the documentation: release of timm, its lines, and the families by whether they train."""

    release: str
    text: str
    rows: list[tuple[str, str, str, int, list[str]]]

    @property
    def is_installed(self) -> bool:
        return self.release == timm.__version__

    def families(self, verdict: str | None = None) -> list[str]:
        return [name for row in self.rows if verdict in (None, row[0]) for name in row[4]]


@cache
def recorded() -> Recorded:
    """Read the table; raise AssertionError if it has not the form that ``render_table`` gives it."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    text = page[page.index(BEGIN) : page.index(END) + len(END)]
    lines = text.splitlines()
    first = re.match(r"timm (\S+): \d+ families tried, ", lines[1])
    assert first is not None, lines[1]
    rows = []
    for line in lines[5:-1]:
        row = re.fullmatch(r"\| (trains|error) \| ([\w ]+) \| ([\w, ]+) \| (\d+) \| ([\w, ]+) \|", line)
        assert row is not None, line
        rows.append((row[1], row[2], row[3], int(row[4]), row[5].split(", ")))
    return Recorded(first[1], text, rows)


def render_table() -> str:
    """Return the table with its markers: the families that train with ``sites=None``, and what others give."""
    rows: dict[tuple[bool, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for family in families():
        found = outcome(family)
        rows[found.error is not None, found.gives, found.sites].append(family)
    trained = sum(len(names) for (failed, _, _), names in rows.items() if not failed)
    lines = [
        BEGIN,
        headline(timm.__version__, len(families()), trained),
        "",
        "| `sites=None` | the model gives | sites that can be mixed | families | |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for (failed, gives, sites), names in sorted(rows.items(), key=lambda row: (row[0][0], -len(row[1]), row[0])):
        verdict = "error" if failed else "trains"
        lines.append(f"| {verdict} | {gives} | {', '.join(sites)} | {len(names)} | {', '.join(names)} |")
    return "\n".join([*lines, END])


def headline(release: str, tried: int, trained: int) -> str:
    if trained == tried:
        return f"timm {release}: {tried} families tried, all train with `sites=None`."
    return (
        f"timm {release}: {tried} families tried, {trained} train with `sites=None`, {tried - trained} end in an error "
        f"that states what the model gives and which sites to name instead."
    )


if __name__ == "__main__":
    print(render_table())
