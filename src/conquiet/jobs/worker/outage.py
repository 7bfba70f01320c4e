"""Outages of the store: logged once at the beginning and once at the end, with growing pauses between attempts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from conquiet.backoff import full_jitter
from conquiet.clock import Clock
from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep
from conquiet.observe import JobOutages, SafeLogger

__all__ = ["Outage"]

_log = SafeLogger("conquiet.jobs")

T = TypeVar("T")

_AFTERMATH_SECONDS = 30.0  # what fails so soon after an outage probably fails because of it


class Outage:
    """Shared by all parts and lanes of all workers and connectors of a store in a process: an outage is logged only once."""

    @classmethod
    def enter(cls, dsn: str, clock: Clock, random: Callable[[], float]) -> Outage:
        """Return the one that others in this process use for the same store, or a new one. Call `leave` when done."""
        key = (os.getpid(), dsn, clock, random)  # a fork logs for itself
        with _shared_lock:
            outage = _shared.setdefault(key, cls(clock, random))
            outage._key = key
            outage._users += 1
            return outage

    def leave(self) -> None:
        """When the last one has left, nothing is left of it: whoever comes later finds out for himself."""
        with _shared_lock:
            self._users -= 1
            if not self._users:
                _shared.pop(self._key, None)

    def __init__(self, clock: Clock, random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()  # the parts may run on threads, and fail at the same moment
        self._since: float | None = None
        self._failed_at = 0.0
        self._ended_at: float | None = None
        self._discards_logged = False  # since the beginning of the last outage
        self._metrics = JobOutages()
        self._counted_to = 0.0  # up to here the seconds of this outage are in the metrics
        self.total = 0
        self._key: tuple[object, ...] = ()
        self._users = 0

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def watch(self, asking: Flow[T]) -> Flow[T]:
        """Run `asking`. If it succeeds and was started after the last failure, the outage is over.

        A request started before that failure proves nothing: its answer may have been on its way when the store died.
        """
        begun = self._clock.monotonic()
        value = yield from asking
        with self._lock:
            if self._since is not None and begun >= self._failed_at:
                self._ended_at = self._clock.monotonic()
                seconds = self._ended_at - self._since
                self._count_seconds(self._ended_at)
                self._since = None
                _log.warning("the job store answers again, after %.1f s", seconds)
        return value

    def pause(self, error: StoreUnavailableError, attempt: int, *wake: Signal) -> Flow[None]:
        """Record the failure and wait, longer with each attempt: between 0.05 s and 5 s."""
        with self._lock:
            now = self._clock.monotonic()
            if self._since is not None:
                self._failed_at = now
                self._count_seconds(now)
            elif attempt or not self._is_aftermath(now):
                self._failed_at = self._since = self._counted_to = now
                self._metrics.began()
                self._discards_logged = False
                self.total += 1
                _log.warning("the job store does not answer; retrying until it does: %s", error)
            else:  # a connection that broke during that outage; the next attempt has a new one
                _log.debug("a connection broke during the last outage: %s", error)
        yield Sleep(0.05 + full_jitter(0.1, attempt, 5.0, self._random), *wake)

    def discarded(self, jobs: Sequence[str], text: str) -> None:
        """Log `text` about jobs (ids) whose results are lost: one warning per outage, however many jobs and lanes."""
        if not jobs:
            return
        with self._lock:
            of_outage = self._since is not None or self._is_aftermath(self._clock.monotonic())
            level = logging.INFO if of_outage and self._discards_logged else logging.WARNING
            self._discards_logged = self._discards_logged or of_outage
        if len(jobs) == 1:
            _log.log(level, "job %s: %s", jobs[0], text)
        else:
            shown = ", ".join(jobs[:3]) + (", …" if len(jobs) > 3 else "")
            _log.log(level, "%d jobs (%s): %s", len(jobs), shown, text)

    def _count_seconds(self, now: float) -> None:
        self._metrics.lasted(max(now - self._counted_to, 0.0))
        self._counted_to = now

    def _is_aftermath(self, now: float) -> bool:
        return self._ended_at is not None and now - self._ended_at < _AFTERMATH_SECONDS


_shared: dict[tuple[object, ...], Outage] = {}
_shared_lock = threading.Lock()
