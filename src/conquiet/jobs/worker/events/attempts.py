"""The one place that every event of an attempt passes: it began, and how it ended, as the store knows it.

An attempt ends once: `settled` (succeeded, failed, given back) when the store has recorded that, or `lost`. A job that was
held and given back without having begun had no attempt; only someone who debugs a worker wants to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conquiet.jobs.worker.events.listener import AttemptListener
from conquiet.jobs.worker.held import Held
from conquiet.observe import SafeLogger

__all__ = ["AttemptEvents"]

_log = SafeLogger("conquiet.jobs")


class AttemptEvents:
    """Tells the events of one worker to all who listen. No listener can make it raise.

    Attempts start on any thread; only the committer reports how they end.
    """

    def __init__(self, *listeners: AttemptListener) -> None:
        self._listeners = listeners
        self._failed: set[type] = set()
        self.tells_starts = False  # whether `started` is to be called: it is a step of every job
        self._ends: list[tuple[Sequence[Held], str | None, BaseException | None]] = []  # not told yet

    def claimed(self, batch: Sequence[Held], seconds: float) -> None:
        tells_starts = False
        for listener in self._listeners:
            self._tell(listener, listener.claimed, batch, seconds)
            tells_starts = self._tell(listener, listener.wants_starts) or tells_starts
        self.tells_starts = tells_starts

    def started(self, held: Held) -> None:
        for listener in self._listeners:
            self._tell(listener, listener.started, held)

    def recorded(self, seconds: float) -> None:
        for listener in self._listeners:
            self._tell(listener, listener.recorded, seconds)

    def settled(self, batch: Sequence[Held], outcome: str) -> None:
        """The store has recorded how the jobs of a batch ended: "succeeded", "failed" or "released"."""
        self._ends.append((batch, outcome, None))

    def lost(self, batch: Sequence[Held], error: BaseException | None) -> None:
        """The leases of these jobs are lost, or how they ended could not be recorded: others run them again."""
        self._ends.append((batch, None, error))

    def tell(self) -> None:
        """Pass on what has ended. Whoever reports it to us calls this when nobody waits for its next step."""
        ends, self._ends = self._ends, []
        for batch, outcome, error in ends:
            for listener in self._listeners:
                if outcome is None:
                    self._tell(listener, listener.lost, batch, error)
                else:
                    self._tell(listener, listener.settled, batch, outcome)

    def _tell(self, listener: AttemptListener, event: Callable[..., Any], *facts: Any) -> Any:
        try:
            return event(*facts)
        except Exception:  # noqa: BLE001 - who only listens must not make the work fail
            kind = type(listener)
            if kind not in self._failed:
                self._failed.add(kind)
                _log.exception(
                    "%s failed at an event of a job; the work goes on (logged once)", kind.__qualname__
                )
            return None
