"""Queries on a terminal: a table that stays in place, or a line at a time where nobody can look at a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conquiet.errors import MissingDependencyError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["QueryState", "View", "stderr_view"]


@dataclass
class QueryState:
    """What is known of one query."""

    name: str
    step: str = ""
    """What it is at: `batch 7`, `12 of 40 tasks`."""
    rows: int = 0
    """In the last micro-batch."""
    seconds: float = 0.0
    rate: float = 0.0
    total: int = 0
    lag: float | None = None
    lost: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    """In all, as everything below."""
    alerts: int = 0
    retries: int = 0
    quarantined: int = 0
    duplicates: int = 0

    def line(self) -> str:
        """With rich's markup."""
        parts = [
            f"{self.step}: {self.rows:,} rows in {self.seconds:.1f} s, {self.rate:,.0f} a second, {self.total:,} in all"
        ]
        if self.lag is not None:
            parts.append(f"{_span(self.lag)} behind")
        parts += [f"{name} {count:,}" for name, count in self.verdicts.most_common()]
        parts += [
            f"{count:,} {what}"
            for what, count in (
                ("alerts", self.alerts),
                ("retries", self.retries),
                ("duplicates", self.duplicates),
            )
            if count
        ]
        if self.quarantined:
            parts.append(f"[yellow]{self.quarantined:,} in quarantine[/]")
        if self.lost:
            parts.append(f"[red]{self.lost:,} entries lost[/]")
        return ", ".join(parts)


class View:
    """Told by any thread, one at a time."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._states: dict[str, QueryState] = {}
        self.is_live = console.is_terminal and not console.is_dumb_terminal
        # Drawn when there is something new: no thread, and no clock.
        self._live = Live(console=console, auto_refresh=False, transient=True) if self.is_live else None

    def say(self, name: str, what: str, detail: str = "") -> None:
        """A line that stays. `what` may have markup."""
        from rich.markup import escape

        self._console.print(f"[bold]{escape(name)}[/] {what}{': ' + escape(detail) if detail else ''}")

    def show(self, state: QueryState) -> None:
        """The query goes on."""
        if self._live is None:
            self.say(state.name, state.line())
            return
        self._states[state.name] = state
        if not self._live.is_started:
            self._live.start()
        self._live.update(_table(list(self._states.values())), refresh=True)

    def close(self, name: str) -> None:
        """The query is over."""
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
    for heading in ("query", "at", "rows", "a second", "behind", "verdicts", "alerts", "quarantine"):
        table.add_column(heading, justify="left" if heading in ("query", "at", "verdicts") else "right")
    for state in states:
        verdicts = "\n".join(f"{name} {count:,}" for name, count in state.verdicts.most_common())
        lost = f"\n[red]{state.lost:,} lost[/]" if state.lost else ""
        table.add_row(
            f"[bold]{escape(state.name)}[/]",
            state.step,
            f"{state.total:,}{lost}",
            f"{state.rate:,.0f}",
            "" if state.lag is None else _span(state.lag),
            verdicts,
            f"{state.alerts:,}" if state.alerts else "",
            f"[yellow]{state.quarantined:,}[/]" if state.quarantined else "",
        )
    return table


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:,.0f} min" if minutes < 100 else f"{minutes / 60:,.0f} h"
