"""Outages of what the handlers need, such as a database: logged at the beginning and at the end, with growing pauses."""

from __future__ import annotations

import random
import threading

from conquiet.backoff import full_jitter
from conquiet.clock import Clock, Parker
from conquiet.errors import DamagedRowError, OutcomeUnknownError
from conquiet.flow import Signal
from conquiet.local.failures import error_text
from conquiet.observe import LocalWorkerMetrics, SafeLogger

__all__ = ["Outage"]

_log = SafeLogger("conquiet.local")


class Outage:
    """Shared by the workers of a pool, so that an outage is logged once."""

    def __init__(self, errors: tuple[type[BaseException], ...], clock: Clock) -> None:
        self._errors = errors
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def is_met(self, error: BaseException) -> bool:
        """Return whether `error` means that nothing was done, and that the same can be done later."""
        kind = type(error)  # isinstance would also ask the exception itself, which may raise
        # Only if nothing was done: otherwise it would be done twice. And a damaged row is not repaired by waiting.
        if not issubclass(kind, self._errors) or issubclass(kind, OutcomeUnknownError | DamagedRowError):
            return False
        with self._lock:
            is_first = self._since is None
            if is_first:
                self._since = self._clock.monotonic()
        if is_first:
            _log.warning(
                "the workers pause until this no longer happens; their jobs wait: %s: %s",
                type(error).__qualname__,
                error_text(error, limit=1_024),
                extra={"event": "workers_paused"},
            )
        return True

    def pause(self, attempt: int, stop: Signal, metrics: LocalWorkerMetrics) -> None:
        """Wait between 0.05 s and 5 s, longer with each attempt, or until `stop` is set."""
        parker = Parker()
        stop.add_waker(parker.wake)
        metrics.paused(1)
        try:
            if not stop.is_set():
                self._clock.wait(parker, 0.05 + full_jitter(0.1, attempt, 5.0, random.random))
        finally:
            metrics.paused(-1)
            stop.remove_waker(parker.wake)

    def over(self) -> None:
        """A job succeeded: if there was an outage, it is over."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _log.warning(
                "the workers go on after a pause of %.1f s",
                self._clock.monotonic() - since,
                extra={"event": "workers_resumed"},
            )
