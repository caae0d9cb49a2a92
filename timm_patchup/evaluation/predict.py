"""Predict the classes of images: names and probabilities, image by image.

Images are prepared as in the test of the model. One that cannot be read has an ``error`` instead of a prediction and
does not stop the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from ..data.decode import convert_image, image_types, open_image
from ..data.encoded import Source
from ..data.finish import Finish
from ..data.images import EVALUATION, open_images
from ..errors import DataError, one_line
from ..recipe.parts import ImageSpec
from ..system.files import read_file
from .images import unit_range
from .models import EvalModel, load_models, wrap_model


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for one image.

    Attributes:
        path: the image, as given.
        labels: names of the most probable classes, the most probable first.
        probabilities: theirs.
        error: why the image cannot be read; None if it can.
    """

    path: str
    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    @property
    def label(self) -> str | None:
        """The most probable class."""
        return self.labels[0] if self.labels else None

    @property
    def probability(self) -> float | None:
        """The probability of that class."""
        return self.probabilities[0] if self.probabilities else None


def predict(
    model: nn.Module | str | Path,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    batch_size: int = 32,
    device: str | torch.device = "cpu",
) -> Iterator[Prediction]:
    """Yield the predictions of a model, in the order of the images.

    Args:
        model: of ``timm_patchup.hub.load``, or what it takes: a run, an export, ``USER/NAME``, or a timm model name.
        images: files, folders (all images in them) or both.
        top: number of classes per image.
        batch_size: images at a time.
        device: where the model runs.

    Raises:
        HubError, UserError: the model cannot be loaded.
        DataError: a folder has no images.

    Example:
        >>> for seen in timm_patchup.hub.predict("output/finetune_hard_patchup", "new_photos"):
        ...     print(seen.path, seen.label, seen.probability)
    """
    paths = list_images(images)  # before a download
    given = wrap_model(model) if isinstance(model, nn.Module) else load_models([str(model)])[0]
    return _predict(given, paths, top=top, batch_size=batch_size, device=torch.device(device))


def list_images(images: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return files as they are given, and all images of each folder, sorted.

    Raises:
        DataError: a folder has no images.
    """
    types = image_types()
    found: list[Path] = []
    for path in map(Path, [images] if isinstance(images, (str, Path)) else images):
        if not path.is_dir():
            found.append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in types and file.is_file()]
        visible = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not visible:
            raise DataError(f"{path} contains no images")
        found += visible
    return found


def class_names(model: EvalModel) -> list[str]:
    """Return the names of the classes: from the model, from ImageNet for timm's models, or numbers."""
    if model.label_names is not None:
        return model.label_names
    cfg: dict[str, Any] = getattr(model.network, "pretrained_cfg", None) or {}
    subset = None if model.recipe is not None else infer_imagenet_subset(cfg | {"num_classes": model.num_classes})
    if subset is not None:
        info = ImageNetInfo(subset)
        return [info.index_to_description(index) for index in range(model.num_classes)]
    return [f"class {index}" for index in range(model.num_classes)]


class _SingleImage(Source):
    """One decoded image as a source without labels."""

    class_names = None

    def __init__(self, image: Image.Image) -> None:
        self._image, self.labels = image, np.zeros(1, dtype=np.int64)

    def image(self, index: int, mode: str | None = None) -> Image.Image:
        return self._image if mode is None else self._image.convert(mode)

    def describe(self, index: int) -> str:
        return "an image"


def _predict(
    model: EvalModel, paths: Sequence[Path], *, top: int, batch_size: int, device: torch.device
) -> Iterator[Prediction]:
    names, classifier = class_names(model), model.classifier.to(device)
    finish = Finish(unit_range(model.images), None, device)
    waiting = iter(paths)
    while batch := list(islice(waiting, batch_size)):
        read = [_read(path, model.images) for path in batch]
        pixels = [one for one in read if isinstance(one, Tensor)]
        answers: Iterator[Tensor] = iter(())
        if pixels:
            with torch.inference_mode():
                answers = iter(classifier(finish(torch.cat(pixels))).float().softmax(dim=1).cpu())
        for path, one in zip(batch, read):
            yield Prediction(str(path), error=one) if isinstance(one, str) else _answer(path, next(answers), names, top)


def _read(path: Path, spec: ImageSpec) -> Tensor | str:
    """Return an image as the model takes it, uint8 (1, C, H, W), or why it cannot be read.

    One by one: a batch of photos as they come from a camera would take gigabytes.
    """
    try:
        image = convert_image(open_image(read_file(path)), "RGB")
        return open_images(_SingleImage(image), np.arange(1), spec).__getitems__([(EVALUATION, 0)]).pixels
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror or one_line(error, 200)
    except DataError as error:
        return one_line(error.__cause__ or error, 200)
    except ValueError as error:  # Undecodable, or a name that no file can have
        return one_line(error, 200)


def _answer(path: Path, probabilities: Tensor, names: Sequence[str], top: int) -> Prediction:
    values, order = probabilities.topk(min(top, len(names)))
    return Prediction(str(path), tuple(names[index] for index in order.tolist()), tuple(values.tolist()))
