"""The faults between a process and the store, injected at every single call.

slow            the request is delayed, up to longer than the lease
slow reply      the store has done it, and the answer is delayed
refused         the store was not reached: nothing was done
request lost    nothing was done, and the process gets an unknown outcome
reply lost      the store has done it; the process gets an unknown outcome
late            the process gets an unknown outcome, and the store does it after that
crash before    the process dies; nothing was done
crash after     the store has done it, and the process dies before it gets the answer
pause before    the process is stopped, perhaps longer than its leases, before the request
pause after     the same, before it sees the answer
outage          no process reaches the store for a while
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from conquiet.errors import DuplicateJobError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.flow import Flow, Signal, Sleep
from conquiet.jobs.backends.protocol import Claim, Inserted, JobRow, NewRow, Settlement
from tests.simulation.witness import Witness
from tests.simulation.witnessed import WitnessedBackend
from tests.simulation.world import Process, World

T = TypeVar("T")

KINDS = (
    "slow",
    "slow reply",
    "refused",
    "request lost",
    "reply lost",
    "late",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
    "outage",
)


class Faults:
    """Decides at each call whether a fault happens, and which. After `stop` none happens."""

    def __init__(self, world: World, witness: Witness, *, rate: float, ttl: float, latency: float) -> None:
        self._world = world
        self._witness = witness
        self._chance = world.chance
        self.rate = rate
        self._ttl = ttl
        self._latency = latency
        self._outage_until = 0.0
        self.on_their_way = 0  # late requests not done yet
        self.undisturbed = False  # while the witness itself asks the store
        self.injected: Counter[str] = Counter()
        # Each schedule has only some kinds: one that crashes all the time shows nothing about slow answers.
        self._kinds = self._chance.sample(KINDS, self._chance.randint(1, len(KINDS)))

    def stop(self) -> None:
        self.rate = 0.0
        self._outage_until = 0.0

    def draw(self, process: Process, op: str) -> str | None:
        if not self.rate or self._chance.random() >= self.rate:
            return None
        kind = self._chance.choice(self._kinds)
        self.note(kind, process, op)
        return kind

    def statement_fails(self) -> bool:
        """Whether a statement inside the store fails now. This tests only what the store itself does."""
        if not self.rate or self.undisturbed or self._chance.random() >= self.rate / 4:
            return False
        self.injected["error at statement"] += 1
        return True

    def leave_alone(self, now: bool) -> None:
        self.undisturbed = now

    def note(self, kind: str, process: Process, op: str | None) -> None:
        self.injected[kind] += 1
        self._witness.note(f"fault: {kind}", process.name, op)

    def some_time(self) -> float:
        """Often short, sometimes longer than a lease."""
        return self._chance.random() ** 2 * 2.5 * self._ttl

    def usual_latency(self) -> float:
        """Zero every other time, so that events also happen at the same instant."""
        return max(0.0, 2.0 * self._chance.random() - 1.0) * self._latency if self._latency else 0.0

    def cut_off(self) -> None:
        self._outage_until = self._world.clock.monotonic() + self.some_time()

    @property
    def is_cut_off(self) -> bool:
        return self._world.clock.monotonic() < self._outage_until


class FaultyBackend:
    """The store as one process sees it."""

    def __init__(self, inner: WitnessedBackend, process: Process, world: World, faults: Faults) -> None:
        self._inner = inner
        self._process = process
        self._world = world
        self._faults = faults
        self.capabilities = inner.capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_worker(self) -> FaultyBackend:
        return self

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        return self._ask("insert", lambda: self._inner.insert(queue, rows, skip, connection, notify))

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        return self._ask("claim", lambda: self._inner.claim(claim))

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        return self._ask("settle", lambda: self._inner.settle(settlements, connection, begins))

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        return self._ask("heartbeat", lambda: self._inner.heartbeat(leases))

    def get(self, job_id: str) -> Flow[JobRow | None]:
        return self._ask("get", lambda: self._inner.get(job_id), changes=False)

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        return self._ask("next_due", lambda: self._inner.next_due(queues), changes=False)

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        return self._ask(
            "wait_for_work", lambda: self._inner.wait_for_work(queues, seconds, stop), changes=False
        )

    def begin(self) -> Flow[Any]:
        connection = yield from self._inner.begin()
        self._process.connections.append(connection)
        return connection

    def commit(self, connection: Any) -> Flow[None]:
        try:
            yield from self._ask("commit", lambda: self._inner.commit(connection))
        except StoreOutcomeUnknownError:
            connection.close()  # what is not committed by now is rolled back
            raise

    def awaiting(self) -> FaultyBackend:
        return self

    def _ask(self, op: str, ask: Callable[[], Flow[T]], *, changes: bool = True) -> Flow[T]:
        faults = self._faults
        self._world.count_call()
        kind = faults.draw(self._process, op)
        if latency := faults.usual_latency():
            yield Sleep(latency)
        if kind is None and not faults.is_cut_off:
            answer: T = yield from ask()
            return answer
        if kind in ("slow", "pause before"):
            yield from self._wait(kind)
        elif kind == "outage":
            faults.cut_off()
        elif kind == "crash before":
            yield from self._die()
        if kind == "refused" or faults.is_cut_off:
            raise StoreUnavailableError(f"{op}: not reached. Nothing was changed")
        if kind == "request lost":
            raise _no_answer(op, changes)
        if kind == "late" and changes:
            self._world.spawn(self._world.network, self._later(ask, faults.some_time()), f"late {op}")
            raise _no_answer(op, changes)
        answer = yield from ask()
        if kind in ("slow reply", "pause after"):
            yield from self._wait(kind)
        elif kind == "crash after":
            yield from self._die()
        elif kind == "reply lost":
            raise _no_answer(op, changes)
        return answer

    def _wait(self, kind: str) -> Flow[None]:
        seconds = self._faults.some_time()
        if kind.startswith("pause"):
            self._world.pause(self._process, seconds)
            yield Sleep(0.0)
        else:
            yield Sleep(seconds)

    def _die(self) -> Flow[None]:
        self._world.kill(self._process)
        yield Sleep(None, shield=True)

    def _later(self, ask: Callable[[], Flow[Any]], seconds: float) -> Flow[None]:
        self._faults.on_their_way += 1
        yield Sleep(seconds)
        try:
            yield from ask()
        except (DuplicateJobError, StoreUnavailableError):
            pass  # the caller has already given up on this answer
        finally:
            self._faults.on_their_way -= 1


def _no_answer(op: str, changes: bool) -> StoreUnavailableError:
    return (StoreOutcomeUnknownError if changes else StoreUnavailableError)(f"{op}: no answer came")


def biased(chance: random.Random, *options: Any) -> Any:
    """One of `options`, the first ones more often."""
    return options[int(chance.random() ** 2 * len(options))]
