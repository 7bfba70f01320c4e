"""The second argument of a handler."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from typing import Any

from conquiet.errors import JobConfigError
from conquiet.flow import Call, Flow, Signal, Sleep, current_fence, kept, run, run_async
from conquiet.jobs.backends.protocol import Backend
from conquiet.jobs.model import Job
from conquiet.observe import SafeLogger

__all__ = ["JobContext"]

_log = SafeLogger("conquiet.jobs")


class JobContext:
    """The context of a running job, passed to handlers that take a second argument.

    Use `token` and `version` to fence the handler's own writes: a later lease of the same job has a higher version.
    """

    progress: tuple[float, str] | None = None
    # For the worker, which commits or rolls back. While it is `settling`, a lease that is gone was not lost.
    transaction: Any = None
    settling = False
    _opening_async: asyncio.Lock | None = None

    def __init__(
        self, job: Job, backend: Backend | None, lease_lost: Signal, *, awaits: bool = False
    ) -> None:
        assert job.lease is not None
        self.job = job
        self.token = job.lease.token
        self.version = job.lease.version
        self.lease_lost = lease_lost
        self._backend = backend
        self._awaits = awaits
        self._opening = (
            threading.Lock()
        )  # a handler may ask for the connection in several threads at the same time

    def move(self, backend: Backend, *, awaits: bool) -> None:
        """For the worker, before the handler starts: it runs where this back end can be used."""
        self._backend = backend
        self._awaits = awaits

    @property
    def connection(self) -> Any:
        """A connection to the store's database, in a transaction that the worker commits together with the ack.

        What the handler writes with it takes effect exactly once. Do not commit it.
        """
        backend = self._transactional()
        if self._awaits:
            raise JobConfigError("in an event loop use: await context.get_connection()")
        with self._opening:
            if self.transaction is None:
                fence = current_fence()
                fence.check()
                run(self._begin(backend))
                if fence.closed:  # the handler was abandoned while it was opened: nothing else would end it
                    transaction, self.transaction = self.transaction, None
                    run(backend.roll_back(transaction))
                    fence.check()
        return self.transaction

    async def get_connection(self) -> Any:
        """`connection` for coroutines."""
        backend = self._transactional()
        self._opening_async = lock = self._opening_async or asyncio.Lock()
        async with lock:
            if self.transaction is None:
                await run_async(self._begin(backend))
        return self.transaction

    def _begin(self, backend: Backend) -> Flow[None]:
        # Stored here, inside the flow: the caller may be cancelled once it is open, and it must still be ended.
        self.transaction = yield from backend.begin()

    def take_away(self) -> Flow[None]:
        """End the transaction of an abandoned handler, which may be using it at this moment.

        The handler cannot write with it any more. Its own thread closes the connection (`leave`): a driver may crash
        when a connection is closed during a statement.
        """
        with self._opening:
            connection = self.transaction
            if connection is None:
                return
            if isinstance(connection, sqlite3.Connection):
                yield from _fence_off_sqlite(connection)
            elif not connection.closed:
                yield from _fence_off_psycopg(connection)
                yield from self._transactional().roll_back(connection)  # notices that the connection is cut

    def leave(self) -> None:
        """Close the connection if the handler was abandoned. The handler's thread calls this at its end."""
        if current_fence().closed:
            with self._opening:
                if self.transaction is not None:
                    self.transaction.close()

    def report_progress(self, share: float, note: str = "") -> None:
        """Report progress, from 0 to 1. `JobWorker.running()` shows it, and it is logged at debug level."""
        self.progress = (share, note)
        _log.debug("job %s: %.0f %% %s", self.job.id, share * 100, note)

    def _transactional(self) -> Backend:
        if self._backend is None or not self._backend.capabilities.joins_transactions:
            raise JobConfigError(
                "no connection is available: the store is in memory, or the handler runs in a child process"
            )
        return self._backend


def _fence_off_sqlite(connection: sqlite3.Connection) -> Flow[None]:
    # Read-only first, so that nothing can be written after the rollback. Both steps wait until a running statement has
    # ended; it is interrupted repeatedly until it has.
    yield from kept(_roll_back_sqlite(connection), _interrupting(connection))


def _roll_back_sqlite(connection: sqlite3.Connection) -> Flow[None]:
    while True:
        try:
            yield Call(connection.execute, "PRAGMA query_only = 1")
            if connection.in_transaction:
                yield Call(connection.execute, "ROLLBACK")
            return
        except sqlite3.OperationalError as error:  # this statement was interrupted: try again
            _log.debug("an abandoned transaction is not rolled back yet: %s", error)


def _interrupting(connection: sqlite3.Connection) -> Flow[None]:
    while True:
        yield Call(connection.interrupt)
        yield Sleep(0.02)


def _fence_off_psycopg(connection: Any) -> Flow[None]:
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        try:
            yield Call(connection.cancel)  # otherwise the server would continue the running statement
        except Exception as error:  # noqa: BLE001 - the server is gone, so no statement is running there
            _log.debug("the statement of an abandoned handler could not be cancelled: %s", error)
        line.shutdown(socket.SHUT_RDWR)
