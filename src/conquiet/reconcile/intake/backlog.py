"""How much work waits in a queue outside the process, counted rarely, so that the intake can refuse more than it may hold."""

from __future__ import annotations

import threading
from collections.abc import Callable

from conquiet.checks import checked_int
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import ConquietError, QueueFullError, ReconcileConfigError, redact
from conquiet.observe import SafeLogger

__all__ = ["MAX_DEPTH", "Backlog"]

MAX_DEPTH = 100_000

_log = SafeLogger("conquiet.reconcile")
_COPY_SECONDS = 1.0
_MOST_OF_THE_TIME = 0.05  # spent counting: a store with millions of finished jobs takes its time


class Backlog:
    """`count` returns how much waits; None if it cannot be known. It is called at most once a second.

    In between, what this process adds is counted by itself. A queue that cannot be counted is not taken as full: its
    reports are stored in any case, and the scheduler enqueues them.
    """

    def __init__(
        self,
        what: str,
        count: Callable[[], int | None],
        max_depth: int | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if max_depth is not None:
            checked_int("max_depth", max_depth, 1, error=ReconcileConfigError)
        self.max_depth = max_depth
        self._what = what
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._depth: int | None = None
        self._valid_until = -1.0
        self._is_unknown = False

    def depth(self) -> int | None:
        """Return how much waits, as of at most a second ago; None if it cannot be known."""
        if self._clock.monotonic() >= self._valid_until and self._counting.acquire(
            blocking=self._depth is None  # others go on with the former figure
        ):
            try:
                if self._clock.monotonic() >= self._valid_until:
                    self._look()
            finally:
                self._counting.release()
        return self._depth

    def added(self) -> None:
        """Count an item that this process has enqueued."""
        with self._lock:
            if self._depth is not None:
                self._depth += 1

    def is_full(self) -> bool:
        if self.max_depth is None:
            return False
        depth = self.depth()
        return depth is not None and depth >= self.max_depth

    def check(self) -> None:
        """Raise `QueueFullError` if nothing more may be enqueued."""
        if self.is_full():
            depth = self._depth or 0
            raise QueueFullError(
                f"{depth} items wait in {self._what}, and at most {self.max_depth} may: try later, add workers, "
                "or raise max_depth",
                depth,
            )

    def _look(self) -> None:
        begun = self._clock.monotonic()
        reason = "its length is not known"
        try:
            depth = self._count()
        except ConquietError as error:
            depth, reason = None, redact(str(error))
        now = self._clock.monotonic()
        with self._lock:
            self._depth = depth
            self._valid_until = now + max(_COPY_SECONDS, (now - begun) / _MOST_OF_THE_TIME)
            was_unknown, self._is_unknown = self._is_unknown, depth is None
        if depth is None and not was_unknown:
            _log.warning(
                "what waits in %s cannot be counted (%s): until it can, reports are accepted without a limit",
                self._what,
                reason,
                extra={"event": "backlog_unknown"},
            )
