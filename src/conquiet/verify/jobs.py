"""Tests the promises of a job store, on a store that is used for nothing else."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Parker
from conquiet.errors import StaleLeaseError
from conquiet.jobs import Job, JobState, JobStore, JobWorker, RetrySchedule, open_store
from conquiet.verify.background import hushed
from conquiet.verify.findings import Check, require
from conquiet.verify.job_faults import effects_in
from conquiet.verify.job_worker import EFFECTS

__all__ = ["job_checks", "open_for_checks"]

_HOSTILE = {"text": "ünï\u0000\u202e'; DROP TABLE x; --", "number": 2**62, "nested": [None, {"a": -0.5}]}
_SHORT = 0.3  # seconds: a lease that should expire
_BEATEN = 1.0  # and one that should not


def open_for_checks(dsn: str) -> JobStore:
    return open_store(dsn, retry=RetrySchedule(base_seconds=0.01, max_seconds=0.05))


def job_checks(store: JobStore, work: int) -> list[Check]:
    """The checks without faults, for a store that is used for nothing else."""
    of = _Checks(store, work)
    checks = [
        Check("what is enqueued comes back unchanged", of.round_trip),
        Check("one valid lease per job, however many claim it", of.one_lease),
        Check("a stale worker cannot finish a job", of.fencing),
        Check("a heartbeat keeps a lease alive", of.heartbeat),
        Check("the job of a dead worker runs again", of.rescue),
        Check("a job fails after its retries, not later", of.retry_bound),
    ]
    if store.capabilities.shared:
        checks += [Check("effect and acknowledgement happen together or not at all", of.together)]
    return checks


class _Checks:
    def __init__(self, store: JobStore, work: int) -> None:
        self._store = store
        self._jobs = work

    def round_trip(self) -> str:
        store = self._store
        store.enqueue("round-trip", _HOSTILE, id="first", priority=1)
        ids = store.enqueue_many("round-trip", [{"n": n} for n in range(100)])
        found = [job for _ in range(101) for job in store.claim("round-trip")]
        require(
            [job.id for job in found] == ["first", *ids], "jobs came in another order, or some are missing"
        )
        require(found[0].payload == _HOSTILE, "a payload came back changed")
        store.ack_many(found)
        require(
            store.stats("round-trip")["round-trip"].succeeded == 101,
            "not all acknowledged jobs are Succeeded",
        )
        return "101 jobs, in order"

    def one_lease(self) -> str:
        store = self._store
        store.enqueue_many("claims", [{"n": n} for n in range(self._jobs)])
        taken: Counter[str] = Counter()
        lock = threading.Lock()

        def claim() -> None:
            while found := store.claim("claims", limit=5, lease_ttl=60):
                with lock:
                    taken.update(job.id for job in found)

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        twice = [job for job, times in taken.items() if times > 1]
        require(not twice, f"{len(twice)} jobs were leased to two claimants")
        require(
            len(taken) == self._jobs, f"{self._jobs - len(taken)} of {self._jobs} jobs were never claimed"
        )
        return f"{self._jobs} jobs, 8 claimants"

    def fencing(self) -> str:
        store, job, successor = self._taken_over("fenced")
        settles: dict[str, Callable[[Job], object]] = {"ack": store.ack, "nack": store.nack}
        for name, settle in {**settles, "heartbeat": store.heartbeat}.items():
            try:
                settle(job)
            except StaleLeaseError:
                continue
            require(False, f"a stale {name} was accepted")
        store.ack(successor)
        found = store.get(job.id)
        require(
            found is not None and found.state is JobState.SUCCEEDED, "the valid lease could not acknowledge"
        )
        return "stale ack, nack and heartbeat refused"

    def heartbeat(self) -> str:
        store = self._store
        store.enqueue("beats", {})
        (job,) = store.claim("beats", lease_ttl=_BEATEN)
        for _ in range(6):
            _wait(_BEATEN / 4)
            job = store.heartbeat(job)
        require(not store.claim("beats"), "a job with a valid lease was given to another worker")
        store.ack(job)
        return "held for longer than its lease"

    def rescue(self) -> str:
        began = SYSTEM_CLOCK.monotonic()
        store, _, successor = self._taken_over("rescued")
        require(successor.retries == 0, "an expired lease consumed a retry")
        store.ack(successor)
        return f"after {SYSTEM_CLOCK.monotonic() - began:.2f} s, with a lease of {_SHORT} s"

    def retry_bound(self) -> str:
        store = self._store
        job = store.enqueue("retried", {}, max_retries=2)
        runs = 0

        def fail(job: Job) -> None:
            nonlocal runs
            runs += 1
            raise ValueError("on purpose")

        with hushed():
            JobWorker(store, fail, queues="retried", concurrency=1).run_until_idle(wait_for_delayed=True)
        found = store.get(job.id)
        require(runs == 3, f"it ran {runs} times, not 1 + 2")
        require(found is not None and found.state is JobState.FAILED, "it is not Failed")
        return "1 + 2 executions, then Failed"

    def together(self) -> str:
        store = self._store
        attempts = 0

        def create(job: Job, context: Any) -> None:
            context.connection.execute(f"CREATE TABLE {EFFECTS} (job TEXT NOT NULL)")

        def half(job: Job, context: Any) -> None:
            nonlocal attempts
            attempts += 1
            context.connection.execute(f"INSERT INTO {EFFECTS} (job) VALUES ('half')")  # noqa: S608
            if attempts == 1:
                raise ValueError("on purpose, after the effect")

        self._run(store, "create", create)
        self._run(store, "half", half)
        require(attempts == 2, f"the job ran {attempts} times, not twice")
        found = effects_in(store)
        require(found == ["half"], f"the effect exists {len(found)} times, not once")
        return "an effect whose handler failed was rolled back"

    def _taken_over(self, queue: str) -> tuple[JobStore, Job, Job]:
        """A job whose first lease expired, and which another worker has claimed."""
        store = self._store
        store.enqueue(queue, {})
        (job,) = store.claim(queue, lease_ttl=_SHORT, worker="first")
        for _ in range(100):
            _wait(_SHORT / 3)
            if found := store.claim(queue, lease_ttl=60, worker="second"):
                return store, job, found[0]
        raise TimeoutError("the lease of a dead worker never expired")

    def _run(self, store: JobStore, queue: str, handler: Any) -> None:
        store.enqueue(queue, {})
        with hushed():
            JobWorker(store, handler, queues=queue, concurrency=1).run_until_idle(wait_for_delayed=True)


def _wait(seconds: float) -> None:
    SYSTEM_CLOCK.wait(Parker(), seconds)
