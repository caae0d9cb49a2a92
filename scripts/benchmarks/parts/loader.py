"""How fast training images are loaded: this package's loader beside timm's, on the same JPEGs with the same work.

The work is the same as in the ImageNet recipes: decode, random resized crop to 224, flip, colour jitter, PCA lighting,
normalise. timm has no lighting, so its batches get the same shift of colours in the process that takes them.
"""

import argparse
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import ImageDataset, create_loader
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from timm_patchup.data.augment_params import DeviceAugment
from timm_patchup.data.folders import FolderSource
from timm_patchup.data.images import open_images
from timm_patchup.data.loader import training_loader
from timm_patchup.data.workers import one_thread
from timm_patchup.recipe import Recipe, load_recipe
from timm_patchup.recipe.parts import AugmentSpec, ImageSpec

from ..timing import Part, Row, medians

SYNTHETIC = 512
HEIGHT, WIDTH = 375, 500


class Decoded(Dataset):
    """Only decodes: what no loader can do without."""

    def __init__(self, source: FolderSource, batches: list[list[int]]) -> None:
        self.source, self.batches = source, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> int:
        return sum(self.source.rgb(row).shape[-1] > 0 for row in self.batches[number])


def rows(flags: argparse.Namespace) -> Iterable[Row]:
    """Images per second of all loaders, each over all images once per round."""
    with _images(flags.images) as folder:
        source = FolderSource(folder)
        recipe = load_recipe("imagenet_none", {"workers": flags.workers, "batch_size": flags.image_batch_size})
        count = len(source.labels) // recipe.batch_size * recipe.batch_size
        if count == 0:
            raise SystemExit(f"--images: {len(source.labels)} images are fewer than a batch of {recipe.batch_size}")
        cases = {
            "timm_patchup": _own_epoch(source, recipe),
            "timm": _timm_epoch(folder, recipe, prefetcher=False),
            "timm, prefetcher": _timm_epoch(folder, recipe, prefetcher=True),
            "decoding alone": _decode_epoch(source, recipe),
        }
        seconds = medians(cases, flags.rounds)
        fastest = min(seconds["timm"], seconds["timm, prefetcher"])
        for name, value in seconds.items():
            yield {
                "loader": name,
                "images": f"{count} {'of ' + flags.images.name if flags.images else 'synthetic'}",
                "workers": recipe.workers,
                "images/s": round(count / value),
                "over timm's faster": f"{fastest / value:.2f}",
            }


def _own_epoch(source: FolderSource, recipe: Recipe) -> Callable[[], None]:
    images = open_images(source, np.arange(len(source.labels)), ImageSpec.of(recipe), AugmentSpec.of(recipe))
    loader, batches = training_loader(images, recipe, rank=0, world_size=1)
    epochs = iter(range(10**6))

    def epoch() -> None:
        batches.begin(next(epochs))
        for pixels, _ in loader:
            _check(pixels, recipe)

    return epoch


def _timm_epoch(folder: Path, recipe: Recipe, *, prefetcher: bool) -> Callable[[], None]:
    """Return an epoch of timm's loader with the recipe's settings, and a lighting for its batches."""
    loader = create_loader(
        ImageDataset(str(folder)),
        tuple(recipe.input_size),
        recipe.batch_size,
        is_training=True,
        scale=tuple(recipe.scale),
        ratio=tuple(recipe.ratio),
        hflip=recipe.hflip,
        color_jitter=recipe.color_jitter,
        interpolation=recipe.train_interpolation,
        mean=tuple(recipe.mean),
        std=tuple(recipe.std),
        num_workers=recipe.workers,
        use_prefetcher=prefetcher,
        device=torch.device("cpu"),
    )
    augment = DeviceAugment(jitter=None, lighting=recipe.lighting, erasing=False)
    std = torch.tensor(recipe.std)

    def epoch() -> None:
        for pixels, _ in loader:
            shift = augment.stack([augment.draw() for _ in pixels]).shift
            assert shift is not None
            with one_thread():  # as in this package's loader
                pixels += (shift / std)[:, :, None, None]
            _check(pixels, recipe)

    return epoch


def _decode_epoch(source: FolderSource, recipe: Recipe) -> Callable[[], None]:
    size = recipe.batch_size
    batches = [list(range(first, first + size)) for first in range(0, len(source.labels) - size + 1, size)]
    loader = DataLoader(
        Decoded(source, batches), batch_size=None, num_workers=recipe.workers, persistent_workers=recipe.workers > 0
    )
    return lambda: list(loader)  # type: ignore[return-value]


def _check(pixels: Tensor, recipe: Recipe) -> None:
    assert pixels.shape == (recipe.batch_size, *recipe.input_size)
    assert pixels.dtype == torch.float32


@contextmanager
def _images(folder: Path | None) -> Iterator[Path]:
    """Yield the given folder, or one with synthetic JPEGs of the usual size of ImageNet's."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        write_jpegs(Path(made), SYNTHETIC)
        yield Path(made)


def write_jpegs(folder: Path, count: int) -> None:
    """Write JPEGs with the spectrum of photos, in two classes, at 375 x 500 pixels and about 100 kB."""
    generator = torch.Generator().manual_seed(0)
    down, across = torch.fft.fftfreq(HEIGHT)[:, None], torch.fft.fftfreq(WIDTH)[None, :]
    falling = 1 / (down**2 + across**2).sqrt().clamp(min=1 / WIDTH)
    for number in range(count):
        noise = torch.randn(3, HEIGHT, WIDTH, generator=generator)
        image = torch.fft.ifft2(torch.fft.fft2(noise) * falling).real
        image = (128 + 50 * image / image.std()).clamp(0, 255).byte()
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(encoded, "JPEG", quality=92)
        path.write_bytes(encoded.getvalue())


PART = Part("loader", "Loading training images at 224 pixels, as the ImageNet recipes do", rows)
