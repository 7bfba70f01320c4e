"""Outages of the store: logged once at the beginning and once at the end, with growing pauses between attempts."""

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
    """Shared by all parts of a worker or connector that use the store, so that an outage is logged only once."""

    def __init__(self, clock: Clock, random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()  # the parts may run on threads, and fail at the same moment
        self._since: float | None = None
        self._failed_at = 0.0
        self.total = 0

    def watch(self, asking: Flow[T]) -> Flow[T]:
        """Run `asking`. If it succeeds and was started after the last failure, the outage is over.

        A request started before that failure proves nothing: its answer may have been on its way when the store died.
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
        """Record the failure and wait, longer with each attempt: between 0.05 s and 5 s."""
        with self._lock:
            self._failed_at = self._clock.monotonic()
            if self._since is None:
                self._since = self._failed_at
                self.total += 1
                _log.warning("the job store does not answer; retrying until it does: %s", error)
        yield Sleep(0.05 + full_jitter(0.1, attempt, 5.0, self._random), *wake)
