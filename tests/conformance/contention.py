"""Work under leases so short that many expire, recorded step by step for the history checker."""

from __future__ import annotations

import random
import time
from contextlib import suppress

from conquiet.jobs import Job, JobStore, NewJob, StaleLeaseError
from conquiet.verify.history import History, Operation

QUEUES = ("a", "b")
TTL = 0.06


def fill(store: JobStore, history: History, count: int) -> None:
    for number in range(count):
        with history.operation("enqueue", f"{number}"):
            store.enqueue_many(QUEUES[number % 2], [NewJob({}, id=f"{number}", max_retries=100_000)])


def contend(store: JobStore, history: History, seed: int, seconds: float) -> None:
    """For `seconds`, do anything to jobs. After that, finish them until none is left."""
    choice = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job in _claimed(store, history, choice.randint(1, 4), TTL):
            with suppress(StaleLeaseError):
                _do_something(store, history, job, choice)
    while any(stats.succeeded < _all(stats) for stats in store.stats().values()):
        for job in _claimed(store, history, 10, 5.0):
            with suppress(StaleLeaseError):
                _finish(store, history, job)
        time.sleep(0.005)


def _all(stats: object) -> int:
    return sum(
        getattr(stats, name) for name in ("ready", "delayed", "in_flight", "expired", "failed", "succeeded")
    )


def _claimed(store: JobStore, history: History, limit: int, ttl: float) -> list[Job]:
    with history.operation("claim") as operation:
        jobs = store.claim(QUEUES, limit, lease_ttl=ttl)
        for job in jobs:
            assert job.lease is not None
            until = job.lease.expires_at.timestamp()
            operation.ok(
                job.id,
                holder=job.lease.token,
                version=job.lease.version,
                at=round(until - ttl, 6),
                until=until,
            )
    return jobs


def _do_something(store: JobStore, history: History, job: Job, choice: random.Random) -> None:
    match choice.choice(["finish", "release", "nack", "beat", "sleep", "die", "die"]):
        case "finish":
            if choice.random() < 0.3:  # not too often: there must be work until the end
                _finish(store, history, job)
        case "release":
            with _settling(history, "release", job):
                store.release(job)
        case "nack":
            with _settling(history, "nack", job):
                store.nack(job, "no")
        case "beat":
            for _ in range(3):
                time.sleep(choice.uniform(0.0, TTL / 2))
                with _settling(history, "heartbeat", job) as operation:
                    beaten = store.heartbeat(job)
                    assert beaten.lease is not None
                    operation.ok(until=beaten.lease.expires_at.timestamp())
        case "sleep":  # until about when the lease expires, then finish regardless
            time.sleep(choice.uniform(0.5 * TTL, 1.5 * TTL))
            _finish(store, history, job)


def _finish(store: JobStore, history: History, job: Job) -> None:
    assert job.lease is not None
    with history.operation("handle", job.id, holder=job.lease.token):
        pass
    with _settling(history, "ack", job):
        store.ack(job)


def _settling(history: History, name: str, job: Job) -> Operation:
    """Record the time of the call. The change happens no earlier: after the end of the lease it must be refused."""
    assert job.lease is not None
    return history.operation(name, job.id, holder=job.lease.token, at=time.time())
