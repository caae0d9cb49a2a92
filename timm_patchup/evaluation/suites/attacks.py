"""Accuracy under stronger attacks (the paper's table 5), with foolbox: DeepFool, DDN, Carlini-Wagner and PGD.

The first three minimise the L2 distance. The paper gives 8/255 for them, too, without a norm; as an L2 radius it
changes few answers, so the median distance is more informative. Whether they succeed at the radius is foolbox's own
verdict: the perturbation is cut to the radius and tried again. PGD stays within 8/255 in L-infinity. Carlini-Wagner
stops when the whole batch makes no progress, so its result for a sample depends on the batch, and the batch size is one
of the settings.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.sampling import derive_seed
from ...report.charts import bars
from ...report.numbers import Metric
from ..context import EvalContext, Measurement
from ..suite import Option, Suite, choice

RADIUS = 8 / 255
# PGD's step relative to the radius: Madry et al.'s 2/255 at 8/255, or foolbox's default, which covers a quarter of the
# radius in 7 steps. The paper names neither; a weak attack flatters every model, so the first is the default here.
PGD_STEPS = {"madry": 0.25, "foolbox": 0.01 / 0.3}
MINIMISING = ("deepfool", "ddn", "carlini_wagner")


def settings(context: EvalContext) -> dict[str, Any]:
    steps = context.options["attack_steps"]
    return {
        "package": "foolbox",
        "steps": steps,
        "radius": "8/255",
        "deepfool": "L2, overshoot 0.02, logits, 10 candidates",
        "ddn": f"L2, first radius 1, gamma 0.05: so many steps come down to {0.95**steps:.2f}",
        "carlini_wagner": "L2, step 0.01, 9 binary search steps, first constant 0.001",
        "pgd": f"L-infinity, step {PGD_STEPS[context.options['pgd_step']]:.3g} of the radius, random start",
        "accuracy": "foolbox: right with the perturbation found, cut to the radius",
        "median_distance": "L2 in [0, 1] pixels, of the samples that are right without an attack; - where half resist",
        "batch_size": context.images.batch_size,
    }


def measure(context: EvalContext) -> Measurement:
    """Return the accuracy at the radius per attack, and the median distance of the attacks that minimise it."""
    import foolbox

    steps = context.options["attack_steps"]
    searches = {
        "deepfool": foolbox.attacks.L2DeepFoolAttack(steps=steps, candidates=10, overshoot=0.02),
        "ddn": foolbox.attacks.DDNAttack(steps=steps, init_epsilon=1.0, gamma=0.05),
        "carlini_wagner": foolbox.attacks.L2CarliniWagnerAttack(
            steps=steps, stepsize=0.01, binary_search_steps=9, initial_const=1e-3
        ),
    }
    target = foolbox.PyTorchModel(context.model.classifier, bounds=(0, 1), device=context.device)
    distances: dict[str, list[float]] = {name: [] for name in MINIMISING}
    survivors = torch.zeros(len(MINIMISING) + 2, dtype=torch.float64)
    for images, labels, rows in context.batches("attacks"):
        with torch.inference_mode():
            correct = context.logits(images).argmax(dim=1) == labels
        survived = []
        for number, (name, search) in enumerate(searches.items()):
            found, fooled = _seeded(search, target, images, labels, RADIUS, (context.seed, number, rows[0]))
            distances[name] += _distances(images, found, labels, correct, context).tolist()
            survived.append(correct & ~fooled)
        seed = (context.seed, 3, rows[0])
        fooled = pgd_succeeds(target, images, labels, steps=steps, seed=seed, step=context.options["pgd_step"])
        counts = [int(right.sum()) for right in (*survived, correct & ~fooled)]
        survivors += torch.tensor([*counts, len(labels)])
    *right, count = context.total(survivors).tolist()
    values: dict[str, float | None] = {}
    for name, number in zip(MINIMISING, right):
        gathered = torch.tensor(context.gather(distances[name]), dtype=torch.float64)
        values[f"{name} accuracy"] = 100.0 * number / count
        values[f"{name} median distance"] = _median(gathered[gathered > 0])
    values["pgd accuracy"] = 100.0 * right[-1] / count
    return Measurement(values, count=int(count))


def pgd_succeeds(
    target: Any,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    seed: tuple[int, ...],
    radius: float = RADIUS,
    step: str = "madry",
) -> Tensor:
    """Return whether PGD within the radius in L-infinity changes the answer to a wrong one, bool (B,)."""
    import foolbox

    attack = foolbox.attacks.LinfPGD(steps=steps, rel_stepsize=PGD_STEPS[step], random_start=True)
    return _seeded(attack, target, images, labels, radius, seed)[1]


def _seeded(
    attack: Any, target: Any, images: Tensor, labels: Tensor, radius: float, seed: Any
) -> tuple[Tensor, Tensor]:
    """Return what an attack finds with seeded random numbers, and whether it succeeds within the radius, bool (B,)."""
    devices = [] if images.device.type == "cpu" else [images.device]
    with torch.random.fork_rng(devices, device_type=images.device.type):
        torch.manual_seed(derive_seed(*seed))
        found, _, succeeded = attack(target, images, labels, epsilons=radius)
    return found, succeeded


def _distances(images: Tensor, found: Tensor, labels: Tensor, correct: Tensor, context: EvalContext) -> Tensor:
    """Return the L2 distance per sample: 0 if it was already misclassified, infinite if no adversarial was found."""
    with torch.inference_mode():
        fooled = context.model.classifier(found).argmax(dim=1) != labels
    # foolbox's Carlini-Wagner returns a black image if it finds nothing, and black may be classified differently.
    fooled = fooled & found.flatten(1).any(dim=1)
    distance = (found - images).flatten(1).double().norm(dim=1)
    distance = torch.where(fooled, distance, torch.inf)
    return torch.where(correct, distance.clamp(min=torch.finfo(torch.float64).tiny), 0.0).cpu()


def _median(distances: Tensor) -> float | None:
    """Return the median; None without samples, or if no adversarial was found for half of them."""
    if len(distances) == 0:
        return None
    ordered = distances.sort().values
    middle = float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)
    return middle if middle != float("inf") else None


SUITE = Suite(
    name="attacks",
    title="Attacks",
    unit="accuracy in % within 8/255, median L2 distance",
    measure=measure,
    settings=settings,
    # Earlier releases compared the distance with the radius.
    is_current=lambda stored, options: "foolbox" in stored.get("accuracy", ""),
    values=(*(f"{name} {kind}" for name in MINIMISING for kind in ("accuracy", "median distance")), "pgd accuracy"),
    metrics=(Metric("robust_accuracy", "%", higher_is_better=True),),
    digits=3,
    figure=partial(bars, ylabel="accuracy within 8/255, %", without="distance"),
    packages=("foolbox",),
    options=(
        Option(name="attack_steps", help="steps per attack (default: 7)", type=int, default=7, low=1, metavar="N"),
        choice(
            "pgd_step",
            "step of PGD: 2/255 at 8/255 (madry, the default), or foolbox's own, 0.033 of the radius",
            tuple(PGD_STEPS),
        ),
    ),
)
