"""A store that does not answer: said once when it begins and once when it ends, with growing pauses in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from conquiet.backoff import full_jitter
from conquiet.clock import Clock
from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep

__all__ = ["Outage"]

_log = logging.getLogger("conquiet.jobs")

T = TypeVar("T")


class Outage:
    """Shared by all who ask a store on behalf of one worker or connector: one outage is one line in the log."""

    def __init__(self, clock: Clock, random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()  # the parts may run on threads, and fail at the same moment
        self._since: float | None = None
        self._failed_at = 0.0
        self.total = 0

    def watch(self, asking: Flow[T]) -> Flow[T]:
        """`asking`; if it works, and was begun after the last failure, the outage is over.

        (What was begun before it tells of the time before: an answer may be on its way when the store dies.)
        """
        begun = self._clock.monotonic()
        value = yield from asking
        with self._lock:
            if self._since is not None and begun >= self._failed_at:
                seconds = self._clock.monotonic() - self._since
                self._since = None
                _log.warning("the job store answers again, after %.1f s", seconds)
        return value

    def pause(self, error: StoreUnavailableError, attempt: int, *wake: Signal) -> Flow[None]:
        """Note the failure, and wait a little longer than the last time: between 0.05 s and 5 s."""
        with self._lock:
            self._failed_at = self._clock.monotonic()
            if self._since is None:
                self._since = self._failed_at
                self.total += 1
                _log.warning("the job store does not answer; it is asked again until it does: %s", error)
        yield Sleep(0.05 + full_jitter(0.1, attempt, 5.0, self._random), *wake)
