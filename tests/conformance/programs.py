"""What the child processes of the store tests do: `python -m tests.conformance.programs <name> <arguments>`."""

from __future__ import annotations

import sys
import time

from conquiet.jobs import open_store
from conquiet.verify.history import History
from tests.conformance.contention import contend


def say(*words: object) -> None:
    print(*words, flush=True)


def enqueue(dsn: str) -> None:
    """Enqueue until killed. Print each id after its call has returned."""
    with open_store(dsn) as store:
        while True:
            say(store.enqueue("orders", {}).id)
            say(*store.enqueue_many("orders", [{}, {}, {}]))


def open_at_once(dsn: str) -> None:
    """Open the new database at the same time as other processes."""
    say("ready")
    sys.stdin.readline()
    with open_store(dsn) as store:
        say(store.enqueue("orders", {}).id)


def share(dsn: str) -> None:
    """Claim and settle, beside other processes, until nothing is left. Print each claimed job."""
    with open_store(dsn) as store:
        say("ready")
        sys.stdin.readline()
        while store.stats()["orders"].ready:
            for job in store.claim("orders", 3, lease_ttl=600.0):
                assert job.lease is not None
                say(job.id, job.lease.token, job.lease.version)
                store.ack(job)


def claim_with_a_shifted_clock(dsn: str, shift: str, queue: str) -> None:
    """Claim and keep jobs on a machine whose clock is wrong."""
    right = time.time
    time.time = lambda: right() + float(shift)
    with open_store(dsn) as store:
        for job in store.claim(queue, 10, lease_ttl=60.0):
            beaten = store.heartbeat(job)
            assert beaten.lease is not None
            say(job.id, beaten.lease.expires_at.timestamp())


def contend_for(dsn: str, history: str, seed: str, seconds: str) -> None:
    say("ready")
    sys.stdin.readline()
    with open_store(dsn, max_lease_expiries=100_000) as store, History(history) as written:
        contend(store, written, int(seed), float(seconds))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
