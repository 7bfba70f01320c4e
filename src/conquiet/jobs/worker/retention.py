"""Retention: a worker removes jobs that finished long ago, in small steps beside its work."""

from __future__ import annotations

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep
from conquiet.jobs.backends.protocol import PRUNE_STEP
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.outage import Outage

__all__ = ["Retention"]

_LOOK_SECONDS = 60.0
_STEP_SECONDS = 0.1  # between two full steps, so that jobs go first


class Retention:
    def __init__(self, operations: JobOperations, outage: Outage, store_open: Signal) -> None:
        self._operations = operations
        self._outage = outage
        self._store_open = store_open

    def run(self) -> Flow[None]:
        """Work until it is cancelled, from the moment at which the store is open."""
        older_than = self._operations.retention
        assert older_than is not None
        yield Sleep(None, self._store_open)
        attempt = 0
        while True:
            try:
                removed = yield from self._outage.watch(self._operations.backend.prune(older_than))
            except StoreUnavailableError as error:
                yield from self._outage.pause(error, attempt)
                attempt += 1
                continue
            attempt = 0
            yield Sleep(_STEP_SECONDS if removed == PRUNE_STEP else _LOOK_SECONDS)
