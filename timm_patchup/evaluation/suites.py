"""The suites by name: what each measures, how its numbers are shown, and the packages it needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ..errors import nearest
from . import activations, affine, attacks, clean, corruptions, fgsm, geometry
from .bench import Bench, Measured


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        name: as in ``--suite``.
        title: heading in the report.
        unit: what the numbers of its table are.
        measure: measures one classifier.
        settings: what the numbers depend on; results are taken over only where it is the same.
        digits: decimals in tables.
        labels: names of values in tables, where the key is not good enough.
        packages: modules that must be installed.
        check: raises UserError where a classifier or its images cannot be measured, before anything is.
        values: names of its values in results.json; empty where they are those of the model's sites.
    """

    name: str
    title: str
    unit: str
    measure: Callable[[Bench], Measured]
    settings: Callable[[Bench], dict[str, Any]]
    digits: int = 2
    labels: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    check: Callable[[Bench], None] | None = None
    values: tuple[str, ...] = ()


_CLEAN_LABELS = {"error": "top-1 error, %", "top5_error": "top-5 error, %", "nll": "NLL", "ece": "ECE, %"}
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "clean",
            "Clean test images",
            "",
            clean.measure,
            clean.settings,
            3,
            _CLEAN_LABELS,
            values=tuple(_CLEAN_LABELS),
        ),
        Suite(
            "affine",
            "Deformed images",
            "error, %",
            affine.measure,
            affine.settings,
            values=tuple(deformation.name for deformation in affine.DEFORMATIONS),
        ),
        Suite(
            "fgsm",
            "FGSM",
            "accuracy, %, at each eps",
            fgsm.measure,
            fgsm.settings,
            values=tuple(f"{eps:g}" for eps in fgsm.EPSILONS),
        ),
        Suite(
            "activations",
            "Activations",
            "mean magnitude at each site",
            activations.measure,
            activations.settings,
            4,
            check=activations.check,
        ),
        Suite(
            "geometry",
            "Geometry of mixed features",
            "angle rho, radians",
            geometry.measure,
            geometry.settings,
            4,
            check=geometry.check,
            values=geometry.value_names(),
        ),
        Suite(
            "corruptions",
            "Common corruptions",
            "E_c, sum of errors in % over five severities",
            corruptions.measure,
            corruptions.settings,
            1,
            {"mean error": "mean error, %"},
            ("imagecorruptions",),
            corruptions.check,
            values=(*corruptions.CORRUPTIONS, "mean error"),
        ),
        Suite(
            "attacks",
            "Attacks",
            "accuracy in % within 8/255, median L2 distance",
            attacks.measure,
            attacks.settings,
            3,
            packages=("foolbox",),
            values=attacks.value_names(),
        ),
    )
}


def suite_problems(names: Sequence[str], *, ready_files: bool = False) -> list[str]:
    """Return what is wrong with the names of suites: unknown ones, and packages that are not there."""
    problems = []
    for name in names:
        if name not in SUITES:
            problems.append(f"--suite: unknown suite {name!r}, choose from {', '.join(SUITES)}{nearest(name, SUITES)}")
        elif not (name == "corruptions" and ready_files):
            missing = [package for package in SUITES[name].packages if find_spec(package) is None]
            if missing:
                problems.append(f"suite {name} needs {missing[0]}: pip install 'timm-patchup[robustness]'")
    return problems
