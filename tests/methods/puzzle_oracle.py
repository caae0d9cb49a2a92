"""Slow or foreign solvers that Puzzle Mix is compared with, and real images with the saliency of a trained net."""

import io
from itertools import product

import gco
import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from timm_patchup.data.embedded import fashion_mini_file
from timm_patchup.methods.puzzle_solver import MaskProblem


def slow_energy(problem: MaskProblem, labels: Tensor, sample: int) -> float:
    """The energy of one mask, block by block and edge by edge."""
    n_labels, rows, columns = problem.unary.shape[1:]
    z = (labels[sample] / (n_labels - 1)).tolist()
    total = 0.0
    for r, c in product(range(rows), range(columns)):
        total += float(problem.unary[sample, labels[sample, r, c], r, c])
        if r + 1 < rows:
            total += float(problem.down[sample, r, c]) * (z[r][c] - z[r + 1][c]) ** 2
        if c + 1 < columns:
            total += float(problem.right[sample, r, c]) * (z[r][c] - z[r][c + 1]) ** 2
    return total


def graph_cut(problem: MaskProblem) -> Tensor:
    """The masks of the authors' solver: gco's alpha-beta swap, one sample after the other.

    Not alpha expansion: that needs a metric, and the square of a difference is none (1 > 1/4 + 1/4).
    """
    n_labels, rows, columns = problem.unary.shape[1:]
    gap = np.subtract.outer(range(n_labels), range(n_labels)) ** 2

    def whole(table: Tensor, scale: float) -> np.ndarray:
        return np.ascontiguousarray((table.double().numpy() * scale).round().astype(np.int32))

    masks = []
    for unary, down, right in zip(problem.unary, problem.down, problem.right):
        edge_scale = 1e6 / (n_labels - 1) ** 2
        edges = whole(down, edge_scale), whole(right, edge_scale)
        labels = gco.cut_grid_graph(whole(unary.permute(1, 2, 0), 1e6), gap.astype(np.int32), *edges, algorithm="swap")
        masks.append(torch.from_numpy(labels.astype(np.int64)).view(rows, columns))
    return torch.stack(masks)


def all_masks(n_labels: int, rows: int, columns: int) -> Tensor:
    """Every mask of a small grid: int64, (n_labels ** (rows * columns), rows, columns)."""
    return torch.cartesian_prod(*[torch.arange(n_labels)] * (rows * columns)).view(-1, rows, columns)


def fashion_images(count: int) -> tuple[Tensor, Tensor]:
    """The first images of the embedded data set, float (count, 1, 28, 28) in [0, 1], and their labels."""
    table = pq.read_table(fashion_mini_file("train")).slice(0, count)
    pictures = [Image.open(io.BytesIO(cell["bytes"])) for cell in table["image"].to_pylist()]
    x = torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures]).float()[:, None] / 255.0
    return x, torch.tensor(table["label"].to_pylist())


def train(model: nn.Module, x: Tensor, y: Tensor, *, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        chosen = torch.randint(len(x), (100,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
