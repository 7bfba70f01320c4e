"""What a handler is given besides its job."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from conquiet.errors import JobConfigError
from conquiet.flow import Call, Flow, Signal, current_fence, run, run_async
from conquiet.jobs.backend import Backend
from conquiet.jobs.model import Job

__all__ = ["JobContext", "taken_away"]

_log = logging.getLogger("conquiet.jobs")


class JobContext:
    """What a handler may know and use besides its job; handlers that take a second argument get it.

    `token` and `version` fence the handler's own writes: a later lease of the same job has a higher version.
    """

    def __init__(
        self, job: Job, backend: Backend | None, lease_lost: Signal, *, awaits: bool = False
    ) -> None:
        assert job.lease is not None
        self.job = job
        self.token = job.lease.token
        self.version = job.lease.version
        self.lease_lost = lease_lost
        self.progress: tuple[float, str] | None = None
        self._backend = backend
        self._awaits = awaits
        self._opening = threading.Lock()  # a handler may ask for it from several threads, or tasks, at once
        self._opening_async: asyncio.Lock | None = None
        # The worker's business: it commits or rolls back. While it commits, a lease that is gone was not lost.
        self.transaction: Any = None
        self.settling = False

    @property
    def connection(self) -> Any:
        """A connection to the store's database, in a transaction that the worker commits together with the ack.

        Asking for it is choosing that: the handler's effect on it happens exactly once. Do not commit it.
        """
        backend = self._transactional()
        if self._awaits:
            raise JobConfigError("with isolation='async' it is: await context.get_connection()")
        with self._opening:
            if self.transaction is None:
                fence = current_fence()
                fence.check()
                run(self._begin(backend))
                if fence.closed:  # given up while it was opened: nobody else would end it
                    run(taken_away(backend, self.transaction))
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
        # Kept here, in the flow: whoever waits for it may be cancelled when it is there, and it must be ended.
        self.transaction = yield from backend.begin()

    def report_progress(self, share: float, note: str = "") -> None:
        """How far the job is, from 0 to 1; shown by `JobWorker.running()` and logged at debug level."""
        self.progress = (share, note)
        _log.debug("job %s: %.0f %% %s", self.job.id, share * 100, note)

    def _transactional(self) -> Backend:
        if self._backend is None or not self._backend.capabilities.joins_transactions:
            raise JobConfigError(
                "there is no connection to ask for: the store is in memory, or the handler runs in a process"
            )
        return self._backend


def taken_away(backend: Backend, connection: Any) -> Flow[None]:
    """End a transaction that an abandoned thread may be using at this moment, so that it can do nothing with it.

    What it runs there is interrupted, and the connection is closed and not used again by anybody.
    """
    if hasattr(connection, "interrupt"):  # sqlite3
        yield Call(connection.interrupt)
    else:  # psycopg
        try:
            yield Call(connection.cancel)
        except Exception as error:  # noqa: BLE001 - the server is gone: then nothing runs there any more
            _log.debug("the statement of an abandoned handler could not be cancelled: %s", error)
        yield Call(connection.close)
    yield from backend.roll_back(connection)
