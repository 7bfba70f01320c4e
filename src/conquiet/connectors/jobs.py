"""Leased jobs as transactions. Their leases are kept alive from the fetch until they are settled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from random import random
from typing import Any

from conquiet.checks import checked_queues, checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.connectors.shells import AsyncSettles, Settles, check_source
from conquiet.errors import JobConfigError
from conquiet.flow import THREADS, Flow, run, run_async, shielded
from conquiet.jobs import AsyncJobStore, Job, JobStore, Nack, SettleResult, default_worker
from conquiet.jobs.worker import Heartbeat, Outage, Turns
from conquiet.observe import SafeLogger
from conquiet.task import ExceptionCategory, Outcome, OutcomeStatus, Transaction

__all__ = ["AsyncJobConnector", "JobConnector"]

_log = SafeLogger("conquiet.connectors")


class _Jobs:
    """Success is an ack; a BUSINESS failure that was handled is a nack without retry; any other failure is a nack.

    If a lease is lost, or lapses during an outage of the store, the outcome is unsettled and the job runs again.
    """

    def __init__(
        self,
        store: Any,
        queues: str | Sequence[str],
        *,
        lease_ttl: float = 5.0,
        worker: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], float] = random,
    ) -> None:
        self._operations = store.operations.for_worker()
        self._turns = Turns(checked_queues(queues, error=JobConfigError))
        self._ttl = checked_seconds("lease_ttl", lease_ttl, above_zero=True, error=JobConfigError)
        self._worker = worker or default_worker()
        self._held: dict[str, Job] = {}  # by lease token
        self._lock = threading.Lock()
        self._keeping = False
        self._keeper_failure: BaseException | None = None
        self._enter_outage = partial(Outage.enter, store.dsn, clock, random)
        self._outage = Outage(clock, random)  # shared with the workers of the store while leases are kept

    def fetch(self, batch_size: int) -> Flow[list[Transaction]]:
        self._raise_keeper_failure()
        jobs: list[Job] = yield from self._outage.watch(
            self._operations.claim(self._turns.queues, batch_size, self._ttl, self._worker)
        )
        self._turns.served(jobs)
        self._hold(jobs)
        return [_transaction(job) for job in jobs]

    def settled(self, outcomes: Sequence[Outcome]) -> Flow[Collection[Outcome]]:
        self._raise_keeper_failure()
        acks: list[Outcome] = []
        nacks: list[Outcome] = []
        for outcome in outcomes:
            (acks if outcome.status is OutcomeStatus.SUCCEEDED else nacks).append(outcome)
        refused: list[Outcome] = []
        try:
            if acks:
                jobs = [self._job(outcome) for outcome in acks]
                refused += _refused(acks, (yield from self._operations.ack_many(jobs)))
            if nacks:
                ends = [self._nack(outcome) for outcome in nacks]
                refused += _refused(nacks, (yield from self._operations.nack_many(ends)))
        finally:
            self._let_go(outcomes)
        return refused

    def released(self, outcomes: Sequence[Outcome]) -> Flow[None]:
        """Release the jobs that were not started. A started job may still be running: its lease lapses."""
        with self._lock:
            unbegun = [
                self._held[token]
                for outcome in outcomes
                if not outcome.attempts and (token := _token(outcome)) in self._held
            ]
        self._let_go(outcomes)
        if unbegun:
            for result in (yield from shielded(self._operations.release_many(unbegun))):
                if not result.ok:
                    _log.debug("job %s was not released: %s", result.job_id, result.error)

    # -- leases --------------------------------------------------------------------------------------------------

    def _hold(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._held |= {job.lease.token: job for job in jobs if job.lease is not None}
            start = bool(self._held) and not self._keeping
            self._keeping = self._keeping or start
        if start:
            self._start_keeper(self._keep())

    def _start_keeper(self, keeper: Flow[None]) -> None:
        raise NotImplementedError

    def _keep(self) -> Flow[None]:
        outage = self._outage = self._enter_outage()
        try:
            yield from Heartbeat(self._operations, outage, self._ttl, self._leased, self._lose).run()
        except BaseException as error:
            with self._lock:
                self._keeping = False
            self._keeper_failure = error
            raise
        finally:
            outage.leave()

    def _leased(self) -> list[Job] | None:
        with self._lock:
            self._keeping = bool(self._held)
            return list(self._held.values()) or None

    def _lose(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            lost = [job.id for job in jobs if job.lease and self._held.pop(job.lease.token, None) is not None]
        self._outage.discarded(lost, "the lease was lost; its outcome will be unsettled")

    def _raise_keeper_failure(self) -> None:
        failure, self._keeper_failure = self._keeper_failure, None
        if isinstance(failure, Exception):
            raise failure

    def _let_go(self, outcomes: Iterable[Outcome]) -> None:
        with self._lock:
            for outcome in outcomes:
                self._held.pop(_token(outcome), None)

    def _job(self, outcome: Outcome) -> Job:
        assert outcome.transaction is not None
        job: Job = outcome.transaction.metadata["job"]
        return job

    def _nack(self, outcome: Outcome) -> Nack:
        refused = outcome.category is ExceptionCategory.BUSINESS and outcome.handled
        return Nack(self._job(outcome), outcome.exception, not refused, outcome.category)


def _transaction(job: Job) -> Transaction:
    return Transaction(job.id, job.payload, {"job": job})


def _token(outcome: Outcome) -> str:
    assert outcome.transaction is not None
    lease = outcome.transaction.metadata["job"].lease
    return "" if lease is None else str(lease.token)


def _refused(outcomes: Sequence[Outcome], results: Sequence[SettleResult]) -> list[Outcome]:
    refused = []
    for outcome, result in zip(outcomes, results, strict=True):
        if not result.ok:
            _log.warning("job %s was not settled and runs again: %s", result.job_id, result.error)
            refused.append(outcome)
    return refused


class JobConnector(_Jobs, Settles):
    """A `JobStore` for `ConsumerMixin`. The job, with its lease, is in the transaction's `metadata["job"]`."""

    def __init__(
        self,
        store: JobStore,
        queues: str | Sequence[str],
        *,
        lease_ttl: float = 5.0,
        worker: str | None = None,
    ) -> None:
        check_source(self, store, JobStore, "open_store(dsn)")
        super().__init__(store, queues, lease_ttl=lease_ttl, worker=worker)

    def _start_keeper(self, keeper: Flow[None]) -> None:
        def keep() -> None:
            try:
                run(keeper)
            except Exception:  # noqa: BLE001 - raised by the next fetch or settle
                _log.exception("the heartbeats ended")

        THREADS.start(keep, "job heartbeats")


class AsyncJobConnector(_Jobs, AsyncSettles):
    """An `AsyncJobStore` for `AsyncConsumerMixin`."""

    def __init__(
        self,
        store: AsyncJobStore,
        queues: str | Sequence[str],
        *,
        lease_ttl: float = 5.0,
        worker: str | None = None,
    ) -> None:
        check_source(self, store, AsyncJobStore, "await open_async_store(dsn)")
        super().__init__(store, queues, lease_ttl=lease_ttl, worker=worker)
        self._task: asyncio.Task[None] | None = None

    def _start_keeper(self, keeper: Flow[None]) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._kept(keeper), name="conquiet job heartbeats"
        )

    async def _kept(self, keeper: Flow[None]) -> None:
        try:
            await run_async(keeper)
        except Exception:  # noqa: BLE001 - raised by the next fetch or settle
            _log.exception("the heartbeats ended")
