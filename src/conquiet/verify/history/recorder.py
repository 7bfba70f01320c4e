"""Records a history, from any number of threads and processes."""

from __future__ import annotations

import os
import secrets
from itertools import count
from types import TracebackType

from conquiet.errors import PartialEnqueueError, QueueConnectionError
from conquiet.verify.history.event import PHASES, Event, Phase

__all__ = ["UNKNOWN_OUTCOMES", "History", "Operation"]

# After these, whether the server executed the operation is unknown. (Also after a BaseException that is no Exception.)
UNKNOWN_OUTCOMES: tuple[type[BaseException], ...] = (
    QueueConnectionError,
    PartialEnqueueError,
    ConnectionError,
    TimeoutError,
)


class History:
    """Appends events to `path`. Safe for threads, and for a forked child that inherits it.

    `unknown` are the exceptions after which the outcome of an operation is unknown; any other `Exception` means that it
    failed without effect.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        unknown: tuple[type[BaseException], ...] = UNKNOWN_OUTCOMES,
    ) -> None:
        self.path = os.fspath(path)
        self.unknown = unknown
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._begin()

    def operation(
        self,
        name: str,
        *ids: str,
        holder: str | None = None,
        version: int | None = None,
        at: float | None = None,
        until: float | None = None,
    ) -> Operation:
        """Record a block: invoke at its start; ok, fail or unknown at its end."""
        return Operation(self, Event("invoke", name, "", None, holder, version, at, until), ids)

    def record(
        self,
        phase: Phase,
        name: str,
        id: str | None = None,
        *,
        op: str | None = None,
        holder: str | None = None,
        version: int | None = None,
        at: float | None = None,
        until: float | None = None,
        error: str | None = None,
    ) -> str:
        """Write one line, where a block cannot be used; returns the `op`, which the end of an invoke must name."""
        if phase not in PHASES:
            raise ValueError(f"phase is one of {', '.join(PHASES)}, not {phase!r}")
        if (op is None) != (phase == "invoke"):
            raise ValueError(f"{phase} {name}: an invoke returns an op, and its end needs it (op={op!r})")
        op = op or self.new_op()
        self.write([Event(phase, name, op, id, holder, version, at, until, os.getpid(), error)])
        return op

    def new_op(self) -> str:
        if os.getpid() != self._pid:
            self._begin()  # a forked process needs its own prefix
        return f"{self._prefix}-{next(self._numbers)}"

    def write(self, events: list[Event]) -> None:
        """Write all events in one write, so that they are adjacent in the file."""
        data = b"".join([event.line() for event in events])
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(
                f"only {written} of {len(data)} bytes were written to {self.path}: is the disk full?"
            )

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)


class Operation:
    """One operation in progress; made by `History.operation`.

    `ok`, `fail` and `unknown` note the outcome for one id. They are written together at the end of the block. Ids
    without a note are ok if the block did not raise; otherwise they have failed or are unknown.
    """

    def __init__(self, history: History, about: Event, ids: tuple[str, ...]) -> None:
        self._history = history
        self._about = about._replace(op=history.new_op(), pid=os.getpid())
        self._ids = ids
        self._noted: list[Event] = []

    def ok(
        self,
        id: str | None = None,
        *,
        holder: str | None = None,
        version: int | None = None,
        at: float | None = None,
        until: float | None = None,
    ) -> None:
        about = self._about
        self._noted.append(
            about._replace(
                phase="ok",
                id=self._only_id() if id is None else id,
                holder=about.holder if holder is None else holder,
                version=about.version if version is None else version,
                at=about.at if at is None else at,
                until=about.until if until is None else until,
            )
        )

    def fail(self, id: str | None = None, *, error: str | None = None) -> None:
        self._noted.append(self._end("fail", self._only_id() if id is None else id, error))

    def unknown(self, id: str | None = None, *, error: str | None = None) -> None:
        self._noted.append(self._end("unknown", self._only_id() if id is None else id, error))

    def __enter__(self) -> Operation:
        self._history.write([self._about._replace(id=id) for id in self._ids or (None,)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        noted = {event.id for event in self._noted}
        rest: list[str | None] = [id for id in self._ids if id not in noted]
        if not self._ids and (error is not None or not noted):
            rest = [None]
        phase: Phase = "ok"
        if error is not None:
            surely = isinstance(error, Exception) and not isinstance(error, self._history.unknown)
            phase = "fail" if surely else "unknown"
        why = None if kind is None else kind.__name__
        self._history.write([*self._noted, *(self._end(phase, id, why) for id in rest)])

    def _end(self, phase: Phase, id: str | None, error: str | None) -> Event:
        return self._about._replace(phase=phase, id=id, error=error)

    def _only_id(self) -> str | None:
        if len(self._ids) > 1:
            raise ValueError(f"{self._about.name} has {len(self._ids)} ids: name one")
        return self._ids[0] if self._ids else None
