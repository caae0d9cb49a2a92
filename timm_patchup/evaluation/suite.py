"""What a suite is: its measurement, its options, and how its numbers are shown.

A suite is one file of ``evaluation/suites`` that ends in its own ``SUITE = Suite(...)``. Nothing outside that file
knows a suite by name; the list of all suites is ``evaluation/suites/__init__.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..report.figures import Figure
from ..report.numbers import Metric
from ..report.pages import Block
from .context import EvalContext, Measurement
from .rows import ResultRow

OptionValues = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Option:
    """A flag that belongs to one suite.

    Attributes:
        name: ``attack_steps`` is the flag ``--attack-steps`` and ``context.options["attack_steps"]``.
        help: the flag's help.
        type: converts the flag's text.
        default: its value if it is not given. An option without a default is refused if its suite does not run.
        choices: the allowed values.
        low: the lowest allowed value.
        metavar: stands for the value in the help.
        replaces: packages that the suite does not need if this option is given.
        in_study: whether studies have the flag, too. Their reports with other values are in another folder.
        study_default: its value in studies if it is not given, if that differs from ``default``.
        label: names a value without a path, for the name of that folder; None for the option and its value.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] | None = None
    low: int | None = None
    metavar: str | None = None
    replaces: tuple[str, ...] = ()
    in_study: bool = False
    study_default: Any = None
    label: Callable[[Any], str] | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def default_in_study(self) -> Any:
        return self.default if self.study_default is None else self.study_default


def choice(name: str, help: str, choices: tuple[str, ...], **more: Any) -> Option:
    """Return an option that takes one of some words, the first by default."""
    return Option(name=name, help=help, default=choices[0], choices=choices, **more)


@dataclass(frozen=True)
class Extra:
    """What a suite adds to the report after its table, and to results.json at top level."""

    blocks: tuple[Block, ...] = ()
    stored: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite.

    Attributes:
        name: its name in ``--suite`` and results.json.
        title: its heading in the report.
        unit: the unit of the numbers in its table.
        measure: measures one classifier.
        settings: what the numbers depend on; stored results are reused only if it is equal.
        is_current: takes stored settings and options by name, and returns whether the numbers were measured as in this
            release and with these options, for tables that take them as they are; None if no release differed.
        values: names of its values in results.json; empty if they depend on the model.
        metrics: what the values measure, for the tables and figures of studies.
        labels: names of values in tables, if they differ from ``values``.
        digits: decimals in tables.
        tall: whether the table has one column per model instead of one row.
        figure: plots the rows of a report; returns a matplotlib figure.
        packages: modules that must be installed.
        options: its own flags.
        check: raises UserError if a classifier or its images cannot be measured; called before any measurement.
        check_options: raises UserError if the options do not fit the names of the models in the report.
        extra: additional tables.
    """

    name: str
    title: str
    unit: str = ""
    measure: Callable[[EvalContext], Measurement]
    settings: Callable[[EvalContext], dict[str, Any]]
    is_current: Callable[[Mapping[str, Any], OptionValues], bool] | None = None
    values: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    digits: int = 2
    tall: bool = True
    figure: Callable[[Sequence[ResultRow]], Figure] | None = None
    packages: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    check: Callable[[EvalContext], None] | None = None
    check_options: Callable[[OptionValues, Sequence[str]], None] | None = None
    extra: Callable[[Sequence[ResultRow], OptionValues], Extra] | None = None
