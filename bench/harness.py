"""The harness of all benchmarks.

A benchmark declares comparisons. A comparison runs its variants (`ours`, `raw`, peers by name) in turn, repeatedly,
so that noise affects all of them equally, and reports median and spread. `<name>_vs_<variant>` is our rate divided by
the variant's, computed per repetition: 0.9 means nine tenths of its speed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")

# Does the given number of units of work. A variant whose setup and cleanup should not count times itself and returns
# the seconds.
Variant = Callable[[int], float | None]

OURS = "ours"


@dataclass(frozen=True)
class Comparison:
    name: str
    unit: str
    count: int
    variants: Mapping[str, Variant]

    def key_names(self) -> list[str]:
        others = [variant for variant in self.variants if variant != OURS]
        if OURS in self.variants:
            return [f"{self.name}_per_second", *(f"{self.name}_vs_{variant}" for variant in others)]
        return [f"{self.name}_{variant}_per_second" for variant in others]


@dataclass(frozen=True)
class Figure:
    """A number that is not a rate and is not compared, such as the CPU share of an idle consumer.

    With `count`, its `measure` takes the amount of work.
    """

    name: str
    unit: str
    measure: Callable[..., float]
    count: int | None = None

    def key_names(self) -> list[str]:
        return [self.name]


@dataclass
class Measured:
    """The rates of one comparison, a list per variant, in the order they were taken."""

    comparison: Comparison
    rates: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, variant: str) -> list[float]:
        return [ours / other for ours, other in zip(self.rates[OURS], self.rates[variant], strict=True)]

    def values(self) -> Iterator[tuple[str, float]]:
        name = self.comparison.name
        for variant, rates in self.rates.items():
            if OURS not in self.rates:
                yield f"{name}_{variant}_per_second", statistics.median(rates)
            elif variant == OURS:
                yield f"{name}_per_second", statistics.median(rates)
            else:
                yield f"{name}_vs_{variant}", statistics.median(self.ratios(variant))


class Bench:
    """The comparisons of one room. Declaring them starts nothing."""

    def __init__(self, room: str) -> None:
        self.room = room
        self.entries: list[Comparison | Figure] = []
        self._opened = ExitStack()

    def compare(self, name: str, *, unit: str, count: int, **variants: Variant) -> None:
        self.entries.append(Comparison(name, unit, count, variants))

    def figure(
        self, name: str, *, unit: str, measure: Callable[..., float], count: int | None = None
    ) -> None:
        self.entries.append(Figure(name, unit, measure, count))

    def needs(self, make: Callable[[], AbstractContextManager[T]]) -> Callable[[], T]:
        """Declare a resource of variants, such as a server: opened at its first use, closed after the last."""
        opened: list[T] = []

        def get() -> T:
            if not opened:
                opened.append(self._opened.enter_context(make()))
            return opened[0]

        return get

    def keys(self) -> list[str]:
        return [f"{self.room}.{key}" for entry in self.entries for key in entry.key_names()]

    def run(self, console: Console, repetitions: int, scale: float = 1.0) -> dict[str, float]:
        results: dict[str, float] = {}
        with self._opened:
            for entry in self.entries:
                if isinstance(entry, Figure):
                    size = () if entry.count is None else (max(1, round(entry.count * scale)),)
                    values = [entry.measure(*size) for _ in range(repetitions)]
                    console.print(f"{self.room}.{entry.name}: {median_and_spread(values)} {entry.unit}")
                    results[f"{self.room}.{entry.name}"] = statistics.median(values)
                else:
                    measured = measure(entry, repetitions, max(1, round(entry.count * scale)))
                    console.print(table(self.room, measured))
                    results |= {f"{self.room}.{key}": value for key, value in measured.values()}
        return results


def measure(comparison: Comparison, repetitions: int, count: int) -> Measured:
    measured = Measured(comparison, {variant: [] for variant in comparison.variants})
    names = list(comparison.variants)
    for repetition in range(repetitions + 1):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            begin = time.perf_counter()
            seconds = comparison.variants[name](count)
            if seconds is None:
                seconds = time.perf_counter() - begin
            if repetition > 0:  # the first round is the warm-up
                measured.rates[name].append(count / seconds)
    return measured


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, for variants whose setup should not count."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def table(room: str, measured: Measured) -> Table:
    comparison = measured.comparison
    repetitions = len(next(iter(measured.rates.values())))
    title = f"{room}.{comparison.name}: {comparison.unit} per second, median of {repetitions}"
    page = Table(title=title, title_justify="left")
    for column in ("variant", "median", "lowest", "highest", "ours / variant"):
        page.add_column(column, justify="left" if column == "variant" else "right")
    for variant, rates in measured.rates.items():
        ratio = (
            ""
            if OURS not in measured.rates or variant == OURS
            else median_and_spread(measured.ratios(variant))
        )
        figures = (f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates)))
        page.add_row(variant, *figures, ratio)
    return page


def median_and_spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"
