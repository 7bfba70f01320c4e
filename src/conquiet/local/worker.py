"""The worker: one thread that takes items and calls your function with their jobs."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Protocol

from conquiet.checks import checked_seconds
from conquiet.errors import LocalConfigError, StoreUnavailableError
from conquiet.flow import Signal, deferred_kind, describe, refuse_deferred
from conquiet.local.failures import error_text, report_failure
from conquiet.local.item import QueueItem, shown, told_by
from conquiet.local.outage import Outage
from conquiet.local.queue import PriorityDelayQueue
from conquiet.observe import LocalWorkerMetrics, SafeLogger, Spans
from conquiet.redaction import described

__all__ = ["Session", "Worker", "say_what_stays"]

_log = SafeLogger("conquiet.local")


class _End(Enum):
    """How a job ended."""

    DONE = auto()
    FAILED = auto()
    PUT_OFF = auto()  # an outage


class Session(Protocol):
    """The methods of a session that a worker calls; SQLAlchemy's `Session` has them."""

    def rollback(self) -> object: ...
    def close(self) -> object: ...


class Worker:
    """Calls `handler(job)` for one item after another, on a daemon thread.

    With `session_factory` (for example a `sessionmaker`) it calls `handler(job, session)` with a new session per job:
    the handler commits; if it raises, the session is rolled back; in any case it is closed. A job that fails is
    logged and stored in `LAST_EXCEPTIONS`; it is not tried again, and the worker continues. If the job has a mapping
    `log_fields`, both identify it by these fields.

    An exception in `outages` says that the database is away and nothing was done. The job is not failed: the worker pauses,
    longer each time, and tries again, with another job first if there is one. If that succeeds and this job meets its outage
    again, it fails like any other. `()` means that every exception fails its job.
    """

    def __init__(
        self,
        queue: PriorityDelayQueue,
        handler: Callable[..., object],
        *,
        session_factory: Callable[[], Session] | None = None,
        poll_timeout: float = 5.0,
        outages: tuple[type[BaseException], ...] = (StoreUnavailableError,),
        name: str = "worker",
    ) -> None:
        taken_from: object = queue
        if not isinstance(taken_from, PriorityDelayQueue):
            raise LocalConfigError(f"queue must be a PriorityDelayQueue, not {type(taken_from).__name__}")
        if not callable(handler):
            raise LocalConfigError(f"handler must be a function, not {handler!r}")
        if kind := deferred_kind(handler):
            raise LocalConfigError(
                f"{describe(handler)} is a {kind}, which a call on this worker's thread would not run: use a plain function"
            )
        self._queue = queue
        self._handler = handler
        self._session_factory = session_factory
        self._poll_timeout = checked_seconds(
            "poll_timeout", poll_timeout, above_zero=True, error=LocalConfigError
        )
        given: Any = outages
        if not isinstance(given, tuple) or not all(
            isinstance(one, type) and issubclass(one, BaseException) for one in given
        ):
            raise LocalConfigError(f"outages must be a tuple of exception classes, not {outages!r}")
        self._outage = Outage(outages, queue.clock)
        self._metrics = LocalWorkerMetrics()
        self._stopping = Signal()
        self._thread = threading.Thread(target=self._work, name=f"conquiet {name}", daemon=True)
        self._started = False

    def start(self) -> None:
        """Start the thread. A worker runs once."""
        if self._started or self._stopping.is_set():
            raise LocalConfigError("this worker was started or stopped before: create a new one")
        self._started = True
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Process ready items, then end. Wait at most `timeout` seconds, and return True if the worker has ended.

        Delayed items stay in the queue. They are lost with the process unless another worker takes them.
        """
        self.request_stop()
        return self.join(timeout)

    def request_stop(self) -> None:
        """Like `stop`, but without waiting. Safe in a signal handler."""
        self._stopping.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the worker has ended, at most `timeout` seconds. Return True if it has."""
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self.is_alive()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _work(self) -> None:
        while self._step():
            pass
        self._ended()

    def _step(self) -> bool:
        """Run one turn of the loop. Return False if the worker must end."""
        stopping = self._stopping.is_set()
        item = self._queue.dequeue(not stopping, self._poll_timeout, stop=self._stopping)
        if item is not None:
            return self._process(item) is not _End.PUT_OFF or self._wait_for_end_of_outage(item)
        state = self._queue.snapshot()
        return not stopping and not (state["shutdown"] and state["depth"] == 0)

    def _ended(self) -> None:
        say_what_stays(self._queue, self._outage)

    def _wait_for_end_of_outage(self, item: QueueItem) -> bool:
        """Pause until a job can be done again, then do `item`. Return False if the worker must end before."""
        attempt = 0
        while not self._stopping.is_set():
            self._outage.pause(attempt, self._stopping, self._metrics)
            attempt += 1
            # Another job first: if it can be done and `item` cannot, it is not the database that is to blame.
            other = self._queue.dequeue(block=False)
            end = self._process(other or item)
            if end is not _End.PUT_OFF and other is None:
                return True
            if end is _End.PUT_OFF and other is not None:
                self._queue.put_back(other)
            if end is _End.DONE:
                self._process(item, may_put_off=False)
                return True
        self._queue.put_back(item)
        return False

    def _process(self, item: QueueItem, *, may_put_off: bool = True) -> _End:
        clock = self._queue.clock
        begun = clock.monotonic()
        # Discarded after the job, with everything that the handler sets in it.
        context = contextvars.copy_context()
        spans = Spans.if_wanted("conquiet.local")
        span = None if spans is None else spans.start("conquiet.local.job", context, _span_attributes(item))
        error: BaseException | None = None
        notes: list[str] = []
        try:
            context.run(self._handle, item, notes)
        except BaseException as raised:  # noqa: BLE001 - also SystemExit: no job may end the worker
            error = raised
        seconds = clock.monotonic() - begun
        if spans is not None:
            if error is not None:
                spans.fail(span, type(error).__qualname__, error_text(error, limit=1_024))
            spans.end(span)
        if may_put_off and error is not None and self._outage.is_met(error):
            return _End.PUT_OFF
        self._metrics.processed(seconds, failed=error is not None)
        if error is not None:
            report_failure(item, error, notes)
            return _End.FAILED
        self._outage.over()
        _log_done(item, seconds)
        return _End.DONE

    def _handle(self, item: QueueItem, notes: list[str]) -> None:
        if self._session_factory is None:
            refuse_deferred(self._handler, self._handler(item.job))
            return
        session = self._session_factory()
        try:
            refuse_deferred(self._handler, self._handler(item.job, session))
        except BaseException:
            _attempt(session.rollback, notes, "its session was not rolled back")
            _attempt(session.close, notes, "its session was not closed")
            raise
        session.close()


def say_what_stays(queue: PriorityDelayQueue, outage: Outage) -> None:
    """Log how many items a worker that ends leaves in the queue."""
    state = queue.snapshot()
    scheduled = state["scheduled"]
    if state["ready"] and outage.is_on:
        _log.warning(
            "the worker has stopped during an outage; %d ready jobs stay in the queue, which is memory of this process",
            state["ready"],
            extra={"event": "worker_stopped", "ready": state["ready"]},
        )
    if scheduled:
        _log.warning(
            "the worker has stopped; %d delayed jobs stay in the queue, which is memory of this process: they are "
            "lost when it ends, unless another worker takes them",
            scheduled,
            extra={"event": "worker_stopped", "scheduled": scheduled},
        )


def _attempt(clean_up: Callable[[], object], notes: list[str], note: str) -> None:
    """Clean up after an error. If that fails too, add a note; not to the error, which is the handler's."""
    try:
        clean_up()
    except Exception as another:  # noqa: BLE001 - reported in the note
        notes.append(f"{note}: {described(another)}")


def _span_attributes(item: QueueItem) -> dict[str, Any]:
    attributes = {"conquiet.priority": item.priority_label, "conquiet.seq": item.seq}
    correlation_id = told_by(item.job, "correlation_id")
    if correlation_id is not None:  # OpenTelemetry has no None
        attributes["conquiet.correlation_id"] = shown(correlation_id)
    return attributes


def _log_done(item: QueueItem, seconds: float) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        correlation_id = told_by(item.job, "correlation_id")
        _log.debug(
            "job done: correlation_id=%r priority=%s seq=%d in %.3f s",
            correlation_id,
            item.priority_label,
            item.seq,
            seconds,
            extra={"event": "job_done", "correlation_id": correlation_id, "seq": item.seq},
        )
