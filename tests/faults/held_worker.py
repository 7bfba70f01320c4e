"""A job worker in its own process that stops at a point, prints that it is there, and waits to be released.

    python -m tests.faults.held_worker '{"dsn": …, "point": "commit", …}'

claim       before it asks for jobs
idle        it has found no job and waits for work; with a second SIGTERM expected it stops in the first one
handler     in the handler, before its effect
heartbeat   before a heartbeat is sent, while the handler waits
ack         before the ack of a job without a transaction is sent
commit      with effect and ack in the transaction, before the COMMIT

Its lines: `at <point>` (a line on its standard input releases it), `stop <n>` for each SIGTERM, its counts at the end.
What it does with its jobs goes into the history named in its arguments.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from conquiet.flow import Flow
from conquiet.jobs import Job, JobContext, JobWorker, open_store
from conquiet.jobs.backends.protocol import Claim, Settlement
from conquiet.verify.history import History
from conquiet.verify.recording.jobs import record


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Hold:
    """Stops the worker at `point`, once per job (before a claim: once in total)."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._held: set[str] = set()
        self.passed: dict[str, threading.Event] = {}

    def __call__(self, point: str, about: str = "") -> None:
        if point == self._point and about not in self._held:
            self._held.add(about)
            say("at", point)
            sys.stdin.readline()
            self.event(about).set()

    def announce(self, point: str) -> None:
        """Print that the point is reached, the first time only, and go on."""
        if point == self._point and not self._held:
            self._held.add("")
            say("at", point)

    def event(self, about: str) -> threading.Event:
        return self.passed.setdefault(about, threading.Event())


class HeldBackend:
    """The real backend, with a gate before its steps."""

    def __init__(self, inner: Any, hold: Hold) -> None:
        self._inner = inner
        self._hold = hold
        self._joined: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_worker(self) -> HeldBackend:
        return self

    def claim(self, claim: Claim) -> Flow[Any]:
        self._hold("claim")
        rows, more = yield from self._inner.claim(claim)
        if not rows:
            self._hold.announce("idle")
        return rows, more

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[Any]:
        for job_id, _ in leases:
            self._hold("heartbeat", job_id)
        return (yield from self._inner.heartbeat(leases))

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[Any]:
        for end in settlements:
            if connection is None:
                self._hold("ack", end.job_id)
            else:
                self._joined[id(connection)] = end.job_id
        return (yield from self._inner.settle(settlements, connection, begins))

    def commit(self, connection: Any) -> Flow[None]:
        self._hold("commit", self._joined.get(id(connection), ""))
        yield from self._inner.commit(connection)


class ToldWorker(JobWorker):
    stops = 0
    awaited = 1  # it stays in the first SIGTERM handler until this many have arrived

    def stop(self) -> None:
        super().stop()
        self.stops += 1
        say("stop", self.stops)
        while self.stops < self.awaited:
            time.sleep(0.005)  # an idle worker would end before the second one


def main(dsn: str, point: str, lease_ttl: float, history: str, stops: int) -> None:
    hold = Hold(point)

    def effect(job: Job, context: JobContext) -> None:
        recorded.begin_handling(job)
        hold("handler", job.id)
        if point == "heartbeat":
            hold.event(job.id).wait()
        context.connection.execute(f"INSERT INTO effects VALUES ({job.payload['n']})")

    def plain(job: Job) -> None:
        """A handler whose only effect is its ack."""
        recorded.begin_handling(job)
        recorded.end_handling(job)

    with open_store(dsn, max_lease_expiries=1_000) as store, History(history) as written:
        recorded = record(store, written)
        store.operations.backend = HeldBackend(recorded, hold)
        handlers: dict[str, Any] = {"effect": effect, "plain": plain}
        worker = ToldWorker(
            store,
            handlers,
            lease_ttl=lease_ttl,
            concurrency=1,
            prefetch=0,
            worker="held",
            handle_signals=True,
        )
        worker.awaited = stops if point == "idle" else 1
        say("ready")
        say(json.dumps(asdict(worker.run())))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
