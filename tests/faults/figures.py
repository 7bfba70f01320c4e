"""The figures of a run: what was done, how often, what was lost. A pytest plugin.

A fault test takes the fixture `record_figure` and records its own figures. All are printed at the end of the run and
kept in build/reliability.json, each with its test and its day. A figure of a full campaign is not replaced by one of
a twentieth. Figures that a test no longer records, and figures of a deleted test, are dropped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import campaign

RESULTS = "build/reliability.json"
PROPERTY = "figure"  # the property of a test report
Record = Callable[..., None]


class Figures:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / RESULTS
        self._said: dict[str, set[str]] = defaultdict(set)  # by test, in this run
        self.lines: list[str] = []

    def record(
        self,
        test: str,
        fault: str,
        *,
        n: int,
        lost: int = 0,
        doubled: int = 0,
        whole: bool = False,
        **more: Any,
    ) -> None:
        """Record `n` times this fault: how many were lost, how many effects happened twice, and `more`.

        `whole`: the test always has the same size; it is not scaled to a twentieth outside of campaigns.
        """
        said = "".join(f", {name.replace('_', ' ')} {value}" for name, value in more.items())
        self.lines.append(
            f"{fault}: n {n:,}, lost {lost:,}, double effects {doubled}, 95 % bound {bound_of(n, lost)}{said}"
        )
        self._said[test].add(fault)
        kept, full = self._kept(), whole or campaign.FULL
        if full or not kept.get(fault, {}).get("full"):
            day = f"{datetime.now(UTC):%Y-%m-%d}"
            kept[fault] = {
                "n": n,
                "lost": lost,
                "doubled": doubled,
                **more,
                "full": full,
                "test": test,
                "day": day,
            }
        self._keep(kept)

    def drop_stale(self) -> None:
        """At the end of a run, drop the figures that its tests no longer record and those of tests that are gone."""
        if self._said:
            self._keep(
                {fault: figure for fault, figure in self._kept().items() if self._is_said(fault, figure)}
            )

    def _is_said(self, fault: str, figure: dict[str, Any]) -> bool:
        test = figure.get("test", "")
        file, _, name = test.partition("[")[0].partition("::")
        path = self._root / file
        return (
            fault in self._said.get(test, {fault})
            and path.is_file()
            and f"def {name}(" in path.read_text("utf-8")
        )

    def _kept(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}

    def _keep(self, kept: dict[str, dict[str, Any]]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")


def bound_of(n: int, lost: int = 0) -> str:
    """What cannot be excluded with 95 % confidence after `n` trials without a loss: 3/n (nothing for n <= 3)."""
    return "none" if lost else f"3/{n:,} = {3 / n:.2%}" if n > 3 else f"3/{n}: nothing can be excluded"


def percentiles(seconds: Sequence[float]) -> str:
    """p50 and p99, formatted for people."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
    return f"p50 {p50:.3f} s, p99 {p99:.3f} s"


class FiguresPlugin:
    """Keeps and prints the figures. Under pytest-xdist a figure travels with the report of its test."""

    def __init__(self, root: Path) -> None:
        self._figures = Figures(root)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, figure in report.user_properties:
                if name == PROPERTY and isinstance(figure, dict):
                    self._figures.record(report.nodeid, **figure)

    def pytest_sessionfinish(self) -> None:
        self._figures.drop_stale()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._figures.lines:
            terminalreporter.section("reliability")
            for line in self._figures.lines:
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FiguresPlugin(config.rootpath), "figures")


@pytest.fixture
def record_figure(request: pytest.FixtureRequest) -> Record:
    said = request.node.user_properties
    return lambda fault, **figure: said.append((PROPERTY, {"fault": fault, **figure}))


def table(path: Path) -> str:
    """The kept figures as rows of docs/reliability.md: `python -m tests.faults.figures`."""
    rows = []
    for fault, figure in sorted(json.loads(path.read_text("utf-8")).items()):
        n, lost = figure["n"], figure["lost"]
        bound = f"{3 / n:.2%}" if n > 3 and not lost else "–"
        size = "" if figure["full"] else " (a twentieth)"
        rows.append(
            f"| {fault}{size} | {n:,} | {lost:,} | {figure['doubled']} | {bound} | {figure.get('day', '')} |"
        )
    return "\n".join(["| fault | n | lost | double effects | 95 % bound | day |", "| --- " * 6 + "|", *rows])


if __name__ == "__main__":
    print(table(Path(RESULTS)))
