"""Reach: one model of every timm family trains a step with an altered batch, or ends in an error with a way out.

``families.py`` chooses the model and the size. In the release of timm that the table in the documentation was recorded
with, every family is tested in full and the table must be current. In another one that holds for the families in the
table; those that timm has added since are tried, but whether timm can run them on small images is not our matter.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from timm_patchup import Draw, PatchUp, list_sites
from timm_patchup.core.layout import by_sample, features_in, with_features
from timm_patchup.core.method import INPUT
from timm_patchup.core.sites import Site, resolve_sites, site_module

from .families import (
    BATCH_SIZE,
    INSTEAD,
    KINDS,
    NUM_CLASSES,
    Outcome,
    Trial,
    build,
    families,
    headline,
    images,
    outcome,
    recorded,
    render_table,
)

MANY_DRAWS = 60
QUICK_SEED = 18  # draws two, three or four sites in as many batches; others take a few more
# Families to test in full; a name that an older timm does not have yet, or a newer one no longer, is no case.
IN_FULL = families() if recorded().is_installed else sorted(set(families()) & set(recorded().families()))
NEW = sorted(set(families()) - set(IN_FULL))


@pytest.mark.parametrize("family", IN_FULL)
def test_family(family: str) -> None:
    found = outcome(family)
    trial, model = build(family)
    if found.error is not None:
        assert_clear_error(trial, model, found)
        return
    assert_sites_are_cuts(trial, model, list(list_sites(model)))
    mix = PatchUp(model, prob=1.0, seed=QUICK_SEED)
    draws = train_at_every_site(trial, model, mix)
    if enable_checkpointing(model):
        for site in mix.sites:
            if site.name != INPUT:
                train_step(trial, model, mix, replay=draws[site.name])


def test_families_added_to_timm_train_or_end_in_an_error_of_ours() -> None:
    for family in NEW:
        try:
            trial, model = build(family)
        except Exception:  # timm's own: it is no model of images of any size that was tried
            continue
        found = outcome(family)
        sites = None if found.error is None else found.sites
        assert found.error is None or type(model).__name__ in found.error
        train_at_every_site(trial, model, PatchUp(model, prob=1.0, sites=sites, seed=QUICK_SEED))
    assert recorded().is_installed <= (not NEW)
    assert len(IN_FULL) >= 80


def test_every_model_of_timm_is_in_a_family_that_is_tried() -> None:
    others = set(timm.list_modules()) - set(families())
    assert not any(hasattr(timm.models, other) for other in others)
    counts = {family: len(timm.list_models(module=family)) for family in [*families(), *others]}
    assert all(counts.values())
    assert sum(counts.values()) == len(timm.list_models())
    assert len(families()) >= 85


def test_all_families_train_whatever_they_give() -> None:
    found = {family: outcome(family) for family in IN_FULL}
    assert not {family: one.error for family, one in found.items() if one.error is not None}
    assert {kind for one in found.values() for kind in one.gives.split(" and ")} == set(KINDS)


def test_table_has_its_form() -> None:
    table = recorded()
    names = table.families()
    assert len(set(names)) == len(names) >= 85
    assert all(count == len(listed) and listed == sorted(listed) for *_, count, listed in table.rows)
    assert table.text.splitlines()[1] == headline(table.release, len(names), len(table.families("trains")))
    for verdict, gives, sites, *_ in table.rows:
        assert (verdict == "error") == (gives in INSTEAD)
        assert gives in INSTEAD or set(gives.split(" and ")) <= set(KINDS)
        assert sites.split(", ")[0] == INPUT


def test_table_is_current_if_timm_is_the_release_it_was_recorded_with() -> None:
    assert recorded().text == (render_table() if recorded().is_installed else recorded().text)


def train_at_every_site(trial: Trial, model: nn.Module, mix: PatchUp) -> dict[str, Draw]:
    """Train until every site was drawn in a way that alters something."""
    draws: dict[str, Draw] = {}
    for _ in range(MANY_DRAWS):
        draw = train_step(trial, model, mix)
        if alters(draw):
            draws[str(draw.site)] = draw
        if len(draws) == len(mix.sites):
            break
    assert set(draws) == {site.name for site in mix.sites}
    return draws


def train_step(trial: Trial, model: nn.Module, mix: PatchUp, replay: Draw | None = None) -> Draw:
    """Run one step forward and backward; the features at the drawn site must be what the draw states."""
    x = images(trial).requires_grad_()
    mixed, target = mix(x, torch.arange(BATCH_SIZE), draw=replay)
    draw = mix.draw
    assert draw is not None
    site = next(site for site in mix.sites if site.name == draw.site)
    seen = [[x.detach()], [mixed.detach()]] if site.name == INPUT else []
    handles = watch(model, site, seen)
    output = model(mixed)
    for handle in handles:
        handle.remove()
    assert output.shape == (BATCH_SIZE, NUM_CLASSES)
    before, after = seen
    assert_altered(before, after, draw)
    mix.loss(output, target).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.flatten(1).any(dim=1).all(), "no gradient reaches the input of some sample"
    return draw


def watch(model: nn.Module, site: Site, seen: list[list[Tensor]]) -> list[RemovableHandle]:
    """Record what the model gives at a hidden site, and what the mixer's hook makes of it."""

    def record(module: nn.Module, args: object, output: object) -> None:
        seen.append([by_sample(tensor.detach().clone(), BATCH_SIZE) for tensor in features_in(output)])

    if site.name == INPUT:
        return []
    module = site_module(model, site)
    return [module.register_forward_hook(record, prepend=True), module.register_forward_hook(record)]


def assert_altered(before: list[Tensor], after: list[Tensor], draw: Draw) -> None:
    """Features on the grid are swapped where the mask is; what has no place there is mixed as the targets are."""
    assert draw.changed is not None
    assert draw.site is not None
    layouts = draw.layouts[draw.site]
    assert len(before) == len(after) == len(layouts)
    for own, mixed, layout in zip(before, after, layouts):
        partners = own[draw.partner]
        outside = slice(0, layout.prefix or 0)
        if layout.size:
            changed = layout.fit(draw.changed)
            assert changed.shape[-2:] == (layout.height, layout.width)
            swapped = torch.where(changed, layout.to_nchw(partners), layout.to_nchw(own))
            assert torch.equal(layout.to_nchw(mixed), swapped)
        if layout.prefix:
            as_targets = draw.kept * own[:, outside] + (1.0 - draw.kept) * partners[:, outside]
            torch.testing.assert_close(mixed[:, outside], as_targets)
        assert layout.size + (layout.prefix or 0) * layout.channels == own[0].numel(), "no feature is left out"
    assert all(map(torch.equal, after, before)) != alters(draw)


def alters(draw: Draw) -> bool:
    return draw.partner.tolist() != list(range(BATCH_SIZE)) and bool(draw.changed is not None and draw.changed.any())


def assert_sites_are_cuts(trial: Trial, model: nn.Module, names: Sequence[str]) -> None:
    """Give all samples the features of the first at a site: all outputs must then be equal, or features bypass it."""
    model.eval()
    x = images(trial)
    with torch.no_grad():
        apart = spread(model(x))
        assert apart > 0.0
        for site in resolve_sites(model, names):
            if site.name == INPUT:
                continue
            handle = site_module(model, site).register_forward_hook(first_for_all)
            together = spread(model(x))
            handle.remove()
            assert together <= 1e-3 * apart, f"features bypass {site}: {together:.2g} of {apart:.2g} remain"
    model.train()


def first_for_all(module: nn.Module, args: object, output: Any) -> Any:
    first = []
    for tensor in features_in(output):
        rows = by_sample(tensor, BATCH_SIZE)
        first.append(rows[:1].expand_as(rows).clone().view(tensor.shape))
    return with_features(output, first)


def spread(output: Tensor) -> float:
    return (output - output[:1]).abs().max().item()


def enable_checkpointing(model: nn.Module) -> bool:
    """Turn gradient checkpointing on; False if timm's model has none."""
    try:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    except AssertionError:  # what timm raises
        return False
    return True


def assert_clear_error(trial: Trial, model: nn.Module, found: Outcome) -> None:
    """The error names the model and what it gives; the sites that it offers instead train."""
    assert found.error is not None
    assert type(model).__name__ in found.error
    assert any(given in found.error for given in ("mixing needs", "feature_info"))
    assert found.sites[0] == INPUT
    with pytest.raises(ValueError) as raised:
        draw_inside(trial, model)
    assert str(raised.value) == found.error
    assert_sites_are_cuts(trial, model, found.sites)
    train_at_every_site(trial, model, PatchUp(model, prob=1.0, sites=found.sites, seed=QUICK_SEED))


def draw_inside(trial: Trial, model: nn.Module) -> None:
    mix = PatchUp(model, prob=1.0)
    try:
        for _ in range(MANY_DRAWS):
            mix(images(trial), torch.arange(BATCH_SIZE))
    finally:
        mix.detach()
