"""The worker: one thread that takes items and calls your function with their jobs."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from conquiet.checks import checked_seconds
from conquiet.errors import LocalConfigError
from conquiet.flow import Signal
from conquiet.local.failures import error_text, report_failure
from conquiet.local.item import QueueItem, told_by
from conquiet.local.queue import PriorityDelayQueue
from conquiet.observe import LocalWorkerMetrics, Spans

__all__ = ["Session", "Worker", "say_what_stays"]

_log = logging.getLogger("conquiet.local")


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
    """

    def __init__(
        self,
        queue: PriorityDelayQueue,
        handler: Callable[..., object],
        *,
        session_factory: Callable[[], Session] | None = None,
        poll_timeout: float = 5.0,
        name: str = "worker",
    ) -> None:
        if not callable(handler):
            raise LocalConfigError(f"handler must be a function, not {handler!r}")
        if inspect.iscoroutinefunction(handler):
            raise LocalConfigError(
                f"{handler.__qualname__} is a coroutine function, and a worker is a thread: use a plain function"
            )
        self._queue = queue
        self._handler = handler
        self._session_factory = session_factory
        self._poll_timeout = checked_seconds(
            "poll_timeout", poll_timeout, above_zero=True, error=LocalConfigError
        )
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
            self._process(item)
            return True
        state = self._queue.snapshot()
        return not stopping and not (state["shutdown"] and state["depth"] == 0)

    def _ended(self) -> None:
        say_what_stays(self._queue)

    def _process(self, item: QueueItem) -> None:
        clock = self._queue.clock
        begun = clock.monotonic()
        # Discarded after the job, with everything that the handler sets in it.
        context = contextvars.copy_context()
        spans = Spans.if_wanted("conquiet.local")
        span = None if spans is None else spans.start("conquiet.local.job", context, _span_attributes(item))
        failure: tuple[str, str] | None = None
        try:
            context.run(self._handle, item)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: no job may end the worker
            failure = type(error).__qualname__, error_text(error, limit=1_024)
            report_failure(item, error)
        seconds = clock.monotonic() - begun
        if spans is not None:
            if failure is not None:
                spans.fail(span, *failure)
            spans.end(span)
        self._metrics.processed(seconds, failed=failure is not None)
        if failure is None:
            _log_done(item, seconds)

    def _handle(self, item: QueueItem) -> None:
        if self._session_factory is None:
            self._handler(item.job)
            return
        session = self._session_factory()
        try:
            self._handler(item.job, session)
        except BaseException as error:
            _attempt(session.rollback, error, "its session was not rolled back")
            _attempt(session.close, error, "its session was not closed")
            raise
        session.close()


def say_what_stays(queue: PriorityDelayQueue) -> None:
    """Log how many items a worker that ends leaves in the queue."""
    scheduled = queue.snapshot()["scheduled"]
    if scheduled:
        _log.warning(
            "the worker has stopped; %d delayed jobs stay in the queue, which is memory of this process: they are "
            "lost when it ends, unless another worker takes them",
            scheduled,
            extra={"event": "worker_stopped", "scheduled": scheduled},
        )


def _attempt(clean_up: Callable[[], object], error: BaseException, note: str) -> None:
    """Clean up after `error`. If that fails too, add a note to `error`."""
    try:
        clean_up()
    except Exception as another:  # noqa: BLE001 - reported in the note
        error.add_note(f"{note}: {type(another).__qualname__}: {error_text(another)}")


def _span_attributes(item: QueueItem) -> dict[str, Any]:
    attributes = {"conquiet.priority": item.priority_label, "conquiet.seq": item.seq}
    correlation_id = told_by(item.job, "correlation_id")
    if correlation_id is not None:  # OpenTelemetry has no None
        attributes["conquiet.correlation_id"] = str(correlation_id)
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
