"""The figures of a run: what was done, how often, what was lost. A pytest plugin.

A fault test asks for `record_figure` and says its own; all are told at the end of the run and kept in
build/reliability.json. A figure of a full campaign is not replaced by one of a twentieth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import campaign

RESULTS = "build/reliability.json"
Record = Callable[..., None]
_WORTH_A_BOUND = 5  # below that, "less than 60 %" would be all there is to say


class Figures:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: list[str] = []

    def record(self, fault: str, *, n: int, lost: int = 0, doubled: int = 0, **more: Any) -> None:
        """`n` times this fault: so many were lost, so many effects happened twice, and what else there is to say."""
        figure = {"n": n, "lost": lost, "doubled": doubled, **more}
        bound = "" if lost or n < _WORTH_A_BOUND else f", 95 % bound {bound_of(n)}"
        said = "".join(f", {name.replace('_', ' ')} {value}" for name, value in more.items())
        self.lines.append(f"{fault}: n {n:,}, lost {lost}, double effects {doubled}{bound}{said}")
        kept = json.loads(self._path.read_text()) if self._path.exists() else {}
        if campaign.FULL or not kept.get(fault, {}).get("full"):
            kept[fault] = {**figure, "full": campaign.FULL}
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def bound_of(n: int) -> str:
    """What cannot be excluded with 95 % confidence after `n` trials without a loss: 3/n."""
    return f"{3 / n:.2%}"


def percentiles(seconds: Sequence[float]) -> str:
    """p50 and p99, as people read them."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
    return f"p50 {p50:.3f} s, p99 {p99:.3f} s"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = Figures(config.rootpath / RESULTS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = terminalreporter.config.stash[_FIGURES]
    if figures.lines:
        terminalreporter.section("reliability")
        for line in figures.lines:
            terminalreporter.write_line(line)


@pytest.fixture
def record_figure(pytestconfig: pytest.Config) -> Record:
    return pytestconfig.stash[_FIGURES].record


_FIGURES = pytest.StashKey[Figures]()


def table(path: Path) -> str:
    """The kept figures as rows of docs/reliability.md: `python -m tests.faults.figures`."""
    rows = []
    for fault, figure in sorted(json.loads(path.read_text()).items()):
        n, lost = figure["n"], figure["lost"]
        bound = "–" if lost or n < _WORTH_A_BOUND else bound_of(n)
        size = "" if figure["full"] else " (a twentieth)"
        rows.append(f"| {fault}{size} | {n:,} | {lost:,} | {figure['doubled']} | {bound} |")
    return "\n".join(
        ["| fault | n | lost | double effects | 95 % bound |", "| --- | --- | --- | --- | --- |", *rows]
    )


if __name__ == "__main__":
    print(table(Path(RESULTS)))
