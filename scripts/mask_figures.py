"""Plot the paper's figures of masks, from what the package draws; no model and no training is needed.

    python scripts/mask_figures.py --figure input       # figure 7: the block mask on input images destroys them
    python scripts/mask_figures.py --figure sampling    # figure 8: masks of PatchUp beside CutMix's
    python scripts/mask_figures.py --figure creation    # figure 9: from single features to blocks

Altered places are red. Masks are drawn by ``HardPatchUp`` and ``CutMix`` themselves.
"""

import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from timm_patchup.cli.command import Parser
from timm_patchup.core.draw import Change
from timm_patchup.core.functional import grow_blocks, seed_rate
from timm_patchup.core.method import DrawContext, Method
from timm_patchup.core.sampling import bernoulli
from timm_patchup.data.embedded import fashion_mini_file
from timm_patchup.methods.cutmix import CutMix
from timm_patchup.methods.patchup import HardPatchUp

COUNT = 6
MASK = ListedColormap(["#dfeafa", "#d0353f"])


def change_of(method: Method, site: str, shape: tuple[int, int, int, int], generator: torch.Generator) -> Change:
    """Return what a method draws at a site for features of this shape."""
    partner = torch.arange(shape[0]).roll(1)
    device = torch.device("cpu")
    return method.change(
        DrawContext(site=site, sites=(site,), shape=shape, partner=partner, generator=generator, device=device)
    )


def load_images(seed: int) -> Tensor:
    """Return some embedded images, float32 (COUNT, 3, 28, 28) in [0, 1]."""
    rows = random.Random(seed).sample(pq.read_table(fashion_mini_file("train")).to_pylist(), COUNT)
    images = [np.asarray(Image.open(BytesIO(row["image"]["bytes"])).convert("RGB")) for row in rows]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255


def input_figure(seed: int) -> Figure:
    """Plot images, and what hard PatchUp's block mask makes of them at the input."""
    images, generator = load_images(seed), torch.Generator().manual_seed(seed)
    shape = (COUNT, 3, images.shape[2], images.shape[3])
    change = change_of(HardPatchUp(input_mask="blocks"), "input", shape, generator)
    mixed = change.apply(images, torch.arange(COUNT).roll(1))
    rows = {"images": images, f"block mask, {1 - float(change.kept):.0%} swapped": mixed}
    return panels({name: list(row.permute(0, 2, 3, 1).numpy()) for name, row in rows.items()})


def sampling_figure(seed: int) -> Figure:
    """Plot masks of PatchUp for channels of a 32 x 32 map, and of CutMix for images."""
    generator = torch.Generator().manual_seed(seed)
    blocks = change_of(HardPatchUp(), "stage1", (2, COUNT, 32, 32), generator).changed[0]
    rectangles = [change_of(CutMix(), "input", (2, 3, 32, 32), generator).changed[0, 0] for _ in range(COUNT)]
    return panels({"PatchUp, channels": list(blocks.numpy()), "CutMix, images": [m.numpy() for m in rectangles]})


def creation_figure(seed: int) -> Figure:
    """Plot selected features, and the blocks of 5 that a max-pool grows around them."""
    rate = seed_rate(0.5, 5, 16, 16)
    seeds = bernoulli((COUNT, 16, 16), rate, torch.Generator().manual_seed(seed), torch.device("cpu"))
    return panels({"selected features": list(seeds.numpy()), "blocks of 5": list(grow_blocks(seeds, 5).numpy())})


FIGURES: dict[str, Callable[[int], Figure]] = {
    "input": input_figure,
    "sampling": sampling_figure,
    "creation": creation_figure,
}


def panels(rows: dict[str, list[np.ndarray]]) -> Figure:
    """Plot one line of panels per row: masks (H, W) or images (H, W, 3)."""
    figure = Figure(figsize=(1.5 * COUNT, 1.75 * len(rows)), layout="constrained")
    for line, (name, row) in zip(figure.subplots(len(rows), COUNT, squeeze=False), rows.items()):
        for axes, shown in zip(line, row):
            axes.imshow(shown, cmap=MASK if shown.ndim == 2 else None, vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, fontsize=8)
    return figure


def main() -> None:
    parser = Parser(prog="mask_figures.py", description="Plot the paper's figures of masks.", allow_abbrev=False)
    parser.add_argument("--figure", choices=tuple(FIGURES), default="input", help="which one (default: input)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="PNG to write (default: masks_FIGURE.png)")
    given = parser.parse_args()
    path = given.output or Path(f"masks_{given.figure}.png")
    if path.suffix.lower() != ".png" or path.is_dir():
        parser.error(f"--output must be a PNG file, got {path}")
    figure = FIGURES[given.figure](given.seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, format="png")
    except OSError as error:
        parser.error(str(error))
    print(path)


if __name__ == "__main__":
    main()
