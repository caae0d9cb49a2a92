"""Plot what PatchUp does to two samples at each site: their features, the mask, the hard and the soft result.

    python scripts/visualize.py                                           # two samples of the embedded dataset
    python scripts/visualize.py --images cat.jpg dog.jpg --model resnet50 --pretrained --image-size 224

Every panel shows what hooks in the model recorded: features under ``mix.paused()``, then one draw replayed as a swap
(hard) and with ``--lam`` (soft). Blue comes from sample a, red from sample b, violet from both.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import timm
import torch
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from timm.data import resolve_model_data_config
from timm.utils import ParseKwargs
from torch import Tensor, nn
from torchvision.transforms import v2

from timm_patchup import PatchUp
from timm_patchup.cli.command import Parser
from timm_patchup.core.layout import features_in
from timm_patchup.core.method import INPUT
from timm_patchup.core.probe import probe
from timm_patchup.core.settings import check_value
from timm_patchup.core.sites import Site, resolve_sites, site_module
from timm_patchup.data.embedded import CLASSES, fashion_mini_file
from timm_patchup.errors import SiteError, nearest
from timm_patchup.runs.load import load
from timm_patchup.system.files import read_file

IMAGE_SIZE = 160
OWN = LinearSegmentedColormap.from_list("a", ["#dfeafa", "#85b1e8", "#2464c4", "#071f52"])
PARTNER = LinearSegmentedColormap.from_list("b", ["#fde4e4", "#f29a9c", "#d0353f", "#560a12"])
MASK = ListedColormap(["#ececec", "#4a4a4a"])
INK = "#333333"


@dataclass(frozen=True)
class Result:
    """What one mode made of sample a: a map (H, W), lam inside the mask, and the share of a in the new label."""

    features: np.ndarray
    lam: float
    label: float


@dataclass(frozen=True)
class SiteRow:
    """What is shown of one site: one channel, or the mean over channels if ``channel`` is None."""

    site: str
    channel: int | None
    features: np.ndarray  # (2, H, W), unaltered
    changed: np.ndarray  # (H, W), bool
    kept: float
    results: dict[str, Result]


def open_image(source: str | BytesIO) -> Image.Image:
    try:
        return Image.open(source if isinstance(source, BytesIO) else BytesIO(read_file(Path(source)))).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot read image {source}: {error}") from error


def load_samples(paths: list[str] | None, seed: int) -> tuple[list[Image.Image], list[str]]:
    """Return two images and their names: files, or a shoe and a garment of the embedded dataset."""
    if paths:
        return [open_image(path) for path in paths], [Path(path).stem[:18] for path in paths]
    rows = pq.read_table(fashion_mini_file("train")).to_pylist()
    choose = random.Random(seed).choice
    chosen = [
        choose([row for row in rows if CLASSES[row["label"]] in classes])
        for classes in (("Sneaker", "Ankle boot"), ("T-shirt/top", "Dress"))
    ]
    return [open_image(BytesIO(row["image"]["bytes"])) for row in chosen], [CLASSES[row["label"]] for row in chosen]


def load_model(name: str, *, pretrained: bool, seed: int, **model_kwargs: Any) -> nn.Module:
    """Return the model in training mode, the only one in which features are mixed; a trained one has its weights."""
    if Path(name).is_dir() or ("/" in name and ":" not in name):
        if model_kwargs:
            raise ValueError(f"--model-kwargs are for a new model of timm: {name} has its own")
        return load(name).train()
    if not (":" in name or timm.is_model(name.partition(".")[0])):
        raise ValueError(f"unknown model {name!r}{nearest(name, timm.list_models())}")
    torch.manual_seed(seed)
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=2, in_chans=3, **model_kwargs).train()
    except Exception as error:  # the Hub's client and timm raise many kinds; all mean that there is no model
        raise ValueError(f"cannot load model {name!r}: {str(error) or type(error).__name__}") from error


def load_batch(model: nn.Module, images: list[Image.Image], image_size: int | None) -> Tensor:
    """Return the images as the model's input, (2, C, H, W), normalised with its mean and std."""
    config = resolve_model_data_config(model)
    if image_size is None and isinstance(size := getattr(getattr(model, "patch_embed", None), "img_size", None), tuple):
        image_size = size[0]
    elif image_size is None:
        image_size = config["input_size"][-1] if model.pretrained_cfg.get("fixed_input_size") else IMAGE_SIZE
    prepare = v2.Compose(
        [
            v2.Resize(image_size, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(image_size),
            *([v2.Grayscale()] if config["input_size"][0] == 1 else []),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(config["mean"], config["std"]),
        ]
    )
    return torch.stack([prepare(image) for image in images])


@contextmanager
def recorded(model: nn.Module, site: Site, seed: int) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield a function that runs the model and returns what it passes on at the site.

    Enter after the mixer was made, so that this hook comes last and sees the mixed features.
    """
    seen: list[Tensor] = []
    if site.name == INPUT:
        handle = model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    else:
        handle = site_module(model, site).register_forward_hook(
            lambda module, args, output: seen.append(features_in(output)[0])
        )

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(seed)  # dropout, if a model has it, must not differ between the runs
        model(x)
        return seen[-1]

    try:
        yield run
    finally:
        handle.remove()


@torch.no_grad()
def make_row(model: nn.Module, x: Tensor, site_name: str, args: argparse.Namespace) -> SiteRow:
    """Run the model with a draw at the site, then without it, then with the same mask in each mode."""
    mix = PatchUp(model, prob=1.0, sites=[site_name], gamma=args.gamma, block_size=args.block_size, seed=args.seed)
    site, y = mix.sites[0], torch.arange(2)
    mixed = {}
    with recorded(model, site, args.seed) as run:
        run(mix(x, y)[0])
        # A permutation of two may be the identity; in the picture they are partners.
        draw = replace(mix.draw, partner=torch.tensor([1, 0]))
        with mix.paused():
            clean = run(x)
        for mode in ("hard", "soft") if args.mode == "both" else (args.mode,):
            lam = args.lam if mode == "soft" and site.name != INPUT else 0.0  # the input is always swapped
            altered, target = mix(x, y, draw=replace(draw, change=replace(draw.change, lam=lam)))
            mixed[mode] = run(altered), lam, float(target[0, 0])
    mix.detach()
    layout = probe(model, [site], x)[site.name][0]
    channel = None if site.name == INPUT else choose_channel(layout.to_nchw(clean), args.channel, site.name)

    def view(maps: Tensor) -> np.ndarray:
        return (maps.mean(1) if channel is None else maps[:, channel]).numpy()

    results = {
        mode: Result(view(layout.to_nchw(features))[0], lam, label) for mode, (features, lam, label) in mixed.items()
    }
    changed = view(layout.fit(draw.changed).float())[0] > 0
    return SiteRow(site.name, channel, view(layout.to_nchw(clean)), changed, float(draw.kept), results)


def choose_channel(features: Tensor, channel: int | Literal["auto"], site: str) -> int:
    """Return the channel to show; auto is the one where the samples differ most, relative to its variance."""
    if channel == "auto":
        apart = (features[0] - features[1]).square().mean((1, 2))
        return int((apart / features.var((0, 2, 3)).clamp_min(1e-12)).argmax())
    if channel >= features.shape[1]:
        raise ValueError(f"channel is {channel}, site {site!r} has the channels 0 to {features.shape[1] - 1}")
    return channel


def paint(features: np.ndarray, changed: np.ndarray | bool, lam: float, limits: np.ndarray) -> np.ndarray:
    """Return RGB (H, W, 3): the shade shows the feature, the hue its owner, mixed with weight lam for sample a."""
    low, high = limits
    shade = ((features - low) / max(high - low, 1e-12)).clip(0.0, 1.0)
    own, partner = OWN(shade)[..., :3], PARTNER(shade)[..., :3]
    return np.where(np.expand_dims(changed, -1), lam * own + (1.0 - lam) * partner, own)


def plot_row(axes: np.ndarray, row: SiteRow, *, negate: bool) -> None:
    """Fill one row of panels. ``negate`` keeps photographs from looking inverted: high values are dark."""
    sign = -1.0 if negate and row.channel is None else 1.0
    limits = np.percentile(sign * row.features, (1.0, 99.5))
    height, width = row.changed.shape
    place = "" if row.channel is None else f"channel {row.channel}\n"
    name = row.site.replace("_", r"\_")
    axes[0].set_ylabel(f"$\\bf{{{name}}}$\n{place}{height} x {width}")
    axes[0].imshow(paint(sign * row.features[0], False, 1.0, limits))
    axes[1].imshow(paint(sign * row.features[1], True, 0.0, limits))
    axes[2].imshow(row.changed, cmap=MASK, vmin=0, vmax=1)
    axes[2].set_xlabel(f"$p_u$ = {row.kept:.2f}")
    for panel, (mode, result) in zip(axes[3:], row.results.items(), strict=True):
        panel.imshow(paint(sign * result.features, row.changed, result.lam, limits))
        same = mode == "soft" and row.site == INPUT
        panel.set_xlabel("always a swap" if same else f"label {result.label:.2f} a + {1.0 - result.label:.2f} b")


def plot_figure(rows: list[SiteRow], names: list[str], lam: float, *, negate: bool) -> Figure:
    titles = {"hard": "Hard: swap", "soft": f"Soft: mix, λ = {lam:g}"}
    columns = [f"a: {names[0]}", f"b: {names[1]}", "changed (mask)", *(titles[mode] for mode in rows[0].results)]
    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=(1.86 * len(columns), 1.98 * len(rows) + 0.2), layout=layout)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for panel in axes.flat:
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(color="#bbbbbb", linewidth=0.6)
        panel.xaxis.label.set(size=9, color=INK)
        panel.yaxis.label.set(size=9, color=INK)
    for panel, title in zip(axes[0], columns, strict=True):
        panel.set_title(title, size=10, color=INK, parse_math=False)
    for line, row in zip(axes, rows, strict=True):
        plot_row(line, row, negate=negate)
    return figure


def channel_argument(text: str) -> int | str:
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 'auto' or a number of at least 0, got {text!r}")
    return text if text == "auto" else int(text)


def parse_args(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    parser.add_argument("--images", nargs=2, metavar=("A", "B"), help="two image files; default: two embedded samples")
    parser.add_argument(
        "--model", default="resnet18", help="a timm model, a run, an export or USER/NAME (default: %(default)s)"
    )
    parser.add_argument(
        "--model-kwargs", nargs="*", default={}, action=ParseKwargs, metavar="KEY=VALUE", help="of a new timm model"
    )
    parser.add_argument("--pretrained", action="store_true", help="load the model's weights")
    parser.add_argument("--image-size", type=int, help=f"in pixels; default: {IMAGE_SIZE}, or what the model needs")
    parser.add_argument("--sites", nargs="+", help="names of sites or modules; default: input stem stage1 stage2")
    parser.add_argument("--mode", choices=["both", "hard", "soft"], default="both", help="rows to plot (default: both)")
    parser.add_argument("--gamma", type=float, default=0.5, help="gamma of PatchUp (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=7, help="side of the blocks (default: %(default)s)")
    parser.add_argument("--lam", type=float, default=0.4, help="weight of the own features in soft mode")
    parser.add_argument("--channel", type=channel_argument, default="auto", help="auto: where a and b differ most")
    parser.add_argument("--seed", type=int, default=11, help="of samples, weights and draws (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("scripts/patchup.png"), help="PNG to write (default: %(default)s)"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args = parse_args(parser, argv)
    try:
        check_value("lam", args.lam, float, low=0, high=1)
        check_value("image_size", args.image_size, int | None, low=1)
        images, names = load_samples(args.images, args.seed)
        model = load_model(args.model, pretrained=args.pretrained, seed=args.seed, **args.model_kwargs)
        x = load_batch(model, images, args.image_size)
        rows = [make_row(model, x, site.name, args) for site in resolve_sites(model, args.sites)]
        args.output.parent.mkdir(parents=True, exist_ok=True)
        figure = plot_figure(rows, names, args.lam, negate=args.images is not None)
        figure.savefig(args.output, format=args.output.suffix[1:] or "png", dpi=150)
    except SiteError as error:
        parser.error(error.for_caller("--sites"))
    except (AssertionError, OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        parser.error(str(error) or type(error).__name__)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
