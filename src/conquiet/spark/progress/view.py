"""Shows queries on standard error: as a live table on a terminal, as lines elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conquiet.errors import MissingDependencyError
from conquiet.spark.progress.counts import Tally

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["QueryState", "View", "stderr_view"]


@dataclass
class QueryState:
    """The state of one query, as shown."""

    name: str
    step: str = ""
    """The position: `batch 7`, `12 of 40 tasks`."""
    rows: int = 0
    """Rows of the last micro-batch, like `seconds` and `rate`."""
    seconds: float = 0.0
    rate: float = 0.0
    total: int = 0
    lag: float | None = None
    lost: int = 0
    duplicates: int = 0
    """Rows in total, like `counts`."""
    counts: dict[Tally, Counter[str]] = field(default_factory=dict)

    def line(self) -> str:
        """Return the state as one line, with rich markup."""
        parts = [
            f"{self.step}: {self.rows:,} rows in {self.seconds:.1f} s, {self.rate:,.0f} a second, {self.total:,} in all"
        ]
        if self.lag is not None:
            parts.append(f"{_span(self.lag)} behind")
        parts += self._counted(warnings=False)
        if self.duplicates:
            parts.append(f"{self.duplicates:,} duplicates")
        parts += self._counted(warnings=True)
        if self.lost:
            parts.append(f"[red]{self.lost:,} entries lost[/]")
        return ", ".join(parts)

    def _counted(self, *, warnings: bool) -> list[str]:
        return [
            part
            for tally, numbers in self.counts.items()
            if tally.is_warning == warnings
            for part in tally.shown(numbers)
        ]


class View:
    """Shows states. Can be called from any thread, but only from one at a time."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._states: dict[str, QueryState] = {}
        self.is_live = console.is_terminal and not console.is_dumb_terminal
        # Drawn only when something changes: that needs no refreshing thread.
        self._live = Live(console=console, auto_refresh=False, transient=True) if self.is_live else None

    def say(self, name: str, what: str, detail: str = "") -> None:
        """Print a permanent line. `what` may contain rich markup; `detail` is escaped."""
        from rich.markup import escape

        self._console.print(f"[bold]{escape(name)}[/] {what}{': ' + escape(detail) if detail else ''}")

    def show(self, state: QueryState) -> None:
        """Show the new state of a query."""
        if self._live is None:
            self.say(state.name, state.line())
            return
        self._states[state.name] = state
        if not self._live.is_started:
            self._live.start()
        self._live.update(_table(list(self._states.values())), refresh=True)

    def close(self, name: str) -> None:
        """Remove a query that has ended from the table."""
        self._states.pop(name, None)
        if self._live is not None and self._live.is_started:
            self._live.update(_table(list(self._states.values())), refresh=True)
            if not self._states:
                self._live.stop()


def stderr_view() -> View:
    try:
        from rich.console import Console
    except ImportError as error:
        raise MissingDependencyError(
            'progress on the terminal needs rich: pip install "conquiet[cli]", or pass terminal=False'
        ) from error
    return View(Console(stderr=True, highlight=False, soft_wrap=True))


def _table(states: list[QueryState]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    tallies = dict.fromkeys(tally for state in states for tally in state.counts if tally.heading)
    for heading in ("query", "at"):
        table.add_column(heading)
    for heading in ("rows", "a second", "behind"):
        table.add_column(heading, justify="right")
    for tally in tallies:
        table.add_column(tally.heading, justify="left" if tally.label else "right")
    for state in states:
        lost = f"\n[red]{state.lost:,} lost[/]" if state.lost else ""
        table.add_row(
            f"[bold]{escape(state.name)}[/]",
            state.step,
            f"{state.total:,}{lost}",
            f"{state.rate:,.0f}",
            "" if state.lag is None else _span(state.lag),
            *(tally.cell(state.counts.get(tally, {})) for tally in tallies),
        )
    return table


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:,.0f} min" if minutes < 100 else f"{minutes / 60:,.0f} h"
