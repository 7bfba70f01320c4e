"""Random programs against memory, SQLite and PostgreSQL together, and against one small model of a store.

The model below is the specification in plain Python: dictionaries, sorting, a clock. After every step each store's
answer and every field of every job must be what the model says, except tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from conquiet.embedded import PostgresServer
from conquiet.jobs import (
    DuplicateJobError,
    IllegalTransitionError,
    Job,
    JobError,
    JobNotFoundError,
    JobStore,
    Nack,
    NewJob,
    RetrySchedule,
    StaleLeaseError,
    open_store,
)
from conquiet.jobs.transitions import TRANSITIONS
from conquiet.testing import ManualClock
from tests.campaign import FULL, campaign_size

MAX_RETRIES, BASE, MAXIMUM, MAX_EXPIRIES = 1, 2.0, 6.0, 2
STEPS = 60


# The model


@dataclass
class ModelJob:
    id: str
    seq: int
    queue: str
    payload: dict[str, Any]
    priority: int
    max_retries: int
    retry_at: float | None
    enqueued_at: float
    state: str = "Ready"
    retries: int = 0
    lease: tuple[float, float, str, float] | None = None  # expires at, ttl, worker, started at
    begun: bool = False
    version: int = 0
    expiries: int = 0
    error: str | None = None
    finished_at: float = math.inf
    attempts: list[tuple[Any, ...]] = field(default_factory=list)

    def end(self, at: float, outcome: str, *, kind: str | None = None, error: str | None = None) -> None:
        assert self.lease is not None
        _, _, worker, started_at = self.lease
        self.attempts.append((self.version, worker, started_at, at, outcome, None, kind, error))
        self.lease = None

    def view(self) -> tuple[Any, ...]:
        lease = self.lease and (self.version, *self.lease[:3], self.begun)
        return (
            *(self.id, self.queue, self.payload, self.priority, self.state, self.retries, self.max_retries),
            *(self.retry_at, self.enqueued_at, lease, self.error, tuple(self.attempts), self.expiries),
        )


@dataclass
class Model:
    now: float
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    seq: int = 0
    reached: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def note(self, source: str | None, trigger: str, target: str | None, when: str = "") -> None:
        self.reached[source, trigger, target, when] += 1

    def enqueue(self, queue: str, items: list[NewJob], *, skip: bool) -> list[str]:
        """The ids added; raises ValueError with the ids that already exist."""
        names = [str(item.id) for item in items]
        double = [name for place, name in enumerate(names) if name in self.jobs or name in names[:place]]
        if double and not skip:
            raise ValueError(double)
        added = []
        for item, name in zip(items, names, strict=True):
            if name not in self.jobs:
                self.seq += 1
                self.jobs[name] = ModelJob(
                    *(name, self.seq, queue, dict(item.payload), item.priority),
                    MAX_RETRIES if item.max_retries is None else item.max_retries,
                    self.now + item.delay if item.delay else None,
                    self.now,
                )
                self.note(None, "enqueue", "Ready", "no job has that id")
                added.append(name)
        return added

    def claim(
        self, queues: list[str], limit: int, ttl: float, worker: str, *, begins: bool
    ) -> list[ModelJob]:
        claimed: list[ModelJob] = []
        for job in self.next(queues, limit):
            if not self.lapsed_too_often(job):
                job.version += 1
                job.state, job.lease = "InFlight", (self.now + ttl, ttl, worker, self.now)
                job.begun = begins
                claimed.append(job)
        if len(claimed) < limit and self.next(queues, 1):  # jobs that are Failed now took places of others
            claimed += self.claim(queues, limit - len(claimed), ttl, worker, begins=begins)
        return claimed

    def next(self, queues: list[str], limit: int) -> list[ModelJob]:
        """By priority; with the same priority the oldest job of each queue, then the second of each, and so on."""
        jobs = [job for job in self.jobs.values() if job.queue in queues and self.claimable(job)]
        jobs.sort(key=lambda job: job.seq)

        def place(job: ModelJob) -> tuple[int, int, int]:
            before = [other for other in jobs if (other.queue, other.priority) == (job.queue, job.priority)]
            return job.priority, before.index(job), queues.index(job.queue)

        return sorted(jobs, key=place)[:limit]

    def claimable(self, job: ModelJob) -> bool:
        if job.state == "Ready":
            return job.retry_at is None or job.retry_at <= self.now
        return job.state == "InFlight" and job.lease is not None and job.lease[0] <= self.now

    def lapsed_too_often(self, job: ModelJob) -> bool:
        if job.state == "Ready":
            self.note("Ready", "claim", "InFlight", "retry_at has come")
            return False
        assert job.lease is not None
        job.expiries += job.begun
        if not job.begun or job.expiries < MAX_EXPIRIES:
            job.end(job.lease[0], "lease expired")
            self.note("InFlight", "claim", "InFlight", "the lease has expired")
            return False
        job.error = f"its lease expired {job.expiries} times: its worker died or lost the store each time"
        job.end(job.lease[0], "lease expired", kind="LeaseExpired", error=job.error)
        job.state, job.retry_at, job.finished_at = "Failed", None, self.now
        self.note("InFlight", "claim", "Failed", "the lease has expired as often as is allowed")
        return True

    def held(self, lease: HeldLease) -> ModelJob | None:
        """The job, if this is still its lease."""
        job = self.jobs.get(lease.id)
        if job is None or (job.seq, job.version) != (lease.seq, lease.version) or job.lease is None:
            return None
        return job if job.lease[0] > self.now else None

    def ack(self, job: ModelJob) -> None:
        job.end(self.now, "succeeded")
        job.state, job.retry_at, job.finished_at = "Succeeded", None, self.now
        self.note("InFlight", "ack", "Succeeded")

    def release(self, job: ModelJob) -> None:
        job.end(self.now, "released")
        job.state, job.retry_at = "Ready", None
        self.note("InFlight", "release", "Ready", "no retry is consumed")

    def nack(
        self, job: ModelJob, error: str | None, kind: str | None, factor: float, *, retryable: bool
    ) -> None:
        job.end(self.now, "failed", kind=kind, error=error)
        job.error = error
        if retryable and job.retries < job.max_retries:
            delay = factor * min(BASE * 2**job.retries, MAXIMUM)
            job.state, job.retry_at, job.retries = "Ready", self.now + delay, job.retries + 1
            self.note("InFlight", "nack", "Ready", "retries are left")
        else:
            job.state, job.retry_at, job.finished_at = "Failed", None, self.now
            why = "no retries are left" if retryable else "the failure is not retryable"
            self.note("InFlight", "nack", "Failed", why)

    def heartbeat(self, job: ModelJob) -> float:
        assert job.lease is not None
        expires_at = max(job.lease[0], self.now + job.lease[1])
        job.lease = (expires_at, *job.lease[1:])
        self.note("InFlight", "heartbeat", "InFlight")
        return expires_at

    def retry(self, job_id: str) -> None:
        job = self.move(job_id, "retry", "Failed")
        job.state, job.retries, job.expiries, job.retry_at = "Ready", 0, 0, None
        self.note("Failed", "retry", "Ready")

    def discard(self, job_id: str) -> None:
        job = self.move(job_id, "discard", "Ready", "Failed")
        del self.jobs[job_id]
        self.note(job.state, "discard", None)

    def move(self, job_id: str, trigger: str, *states: str) -> ModelJob:
        if job_id not in self.jobs:
            raise LookupError(job_id)
        if self.jobs[job_id].state not in states:
            raise PermissionError(job_id)
        return self.jobs[job_id]

    def prune(self, older_than: float) -> int:
        old = [
            job
            for job in self.jobs.values()
            if job.state in ("Succeeded", "Failed") and job.finished_at <= self.now - older_than
        ]
        for job in old:
            del self.jobs[job.id]
            self.note(job.state, "prune", None, "it finished long enough ago")
        return len(old)

    def stats(self) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {}
        for job in self.jobs.values():
            kind = {"Ready": "delayed", "InFlight": "in_flight"}.get(job.state, job.state.lower())
            if self.claimable(job):
                kind = {"Ready": "ready", "InFlight": "expired"}[job.state]
            counts.setdefault(job.queue, Counter())[kind] += 1
        return counts


REFUSALS: dict[type[Exception], type[JobError]] = {
    ValueError: DuplicateJobError,
    LookupError: JobNotFoundError,
    PermissionError: IllegalTransitionError,
}


# The stores


@dataclass(frozen=True, eq=False)
class HeldLease:
    """A lease, one per store: what the model knows of it, and the jobs as claimed."""

    id: str
    seq: int
    version: int
    jobs: dict[str, Job]


class Stores:
    """The three stores, with clocks set to the same time, and a source of randomness that gives `factor`."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.now = 1_700_000_000.0
        self.factor = 0.0
        self.clock = ManualClock(self.now)
        self.admin = psycopg.connect(dsn, autocommit=True)
        self.admin.execute(
            f"CREATE SCHEMA moved; CREATE TABLE moved.reading AS SELECT {self.now}::float8 AS seconds;"
            "CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT to_timestamp(seconds) FROM moved.reading'"
        )
        self.options: dict[str, Any] = {
            "retry": RetrySchedule(MAX_RETRIES, BASE, MAXIMUM),
            "random": lambda: self.factor,
            "max_lease_expiries": MAX_EXPIRIES,
        }
        path = quote("-c search_path=moved,pg_catalog,public")
        self.postgres = open_store(f"{dsn}?options={path}", **self.options)
        self.file = f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
        self.sqlite = open_store(self.file, clock=self.clock, **self.options)
        self.all: dict[str, JobStore] = {}
        self.reached: Counter[tuple[Any, ...]] = Counter()
        self.runs = 0

    def begin(self) -> None:
        """Start a new program: no jobs anywhere."""
        self.runs += 1
        self.admin.execute("DELETE FROM moved.conquiet_jobs")
        self.sqlite.operations.backend._connection.execute("DELETE FROM conquiet_jobs")  # type: ignore[attr-defined]
        memory = open_store("memory://", clock=self.clock, **self.options)
        self.all = {"memory": memory, "sqlite": self.sqlite, "postgresql": self.postgres}

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance(seconds)
        self.admin.execute("UPDATE moved.reading SET seconds = %s", (self.now,))

    def close(self) -> None:
        self.sqlite.close()
        self.postgres.close()
        self.admin.close()


def view(job: Job) -> tuple[Any, ...]:
    """A job as the model shows it."""
    lease = job.lease and (
        *(job.lease.version, job.lease.expires_at.timestamp(), job.lease.ttl, job.lease.worker),
        job.lease.begun,
    )
    attempts = tuple(
        (
            *(one.number, one.worker, one.started_at.timestamp(), one.ended_at.timestamp(), one.outcome),
            *(one.category, one.error_type, one.error_message),
        )
        for one in job.attempts
    )
    return (
        *(job.id, job.queue, job.payload, job.priority, job.state.value, job.retries, job.max_retries),
        *(job.retry_at and job.retry_at.timestamp(), job.enqueued_at.timestamp(), lease, job.error),
        *(attempts, job.lease_expiries),
    )


# The programs

IDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
QUEUES = st.sampled_from(["one", "two"])
NEW_JOBS = st.builds(
    NewJob,
    payload=st.builds(lambda n: {"n": n}, st.integers(0, 3)),
    id=IDS,
    priority=st.sampled_from([5, 5, 5, 1, 9]),
    delay=st.sampled_from([0.0, 0.0, 0.0, 1.0, 5.0]),
    max_retries=st.sampled_from([None, None, 0, 2]),
)
TTLS = st.sampled_from([2.0, 8.0])
WORKERS = st.sampled_from(["w", "v"])
FACTORS = st.sampled_from([0.0, 0.125, 0.5, 0.875])
AIMS = st.sampled_from(["Failed", "Ready", "InFlight", "Succeeded", None])
ERRORS = st.sampled_from([None, "text", ValueError("broken")])


class Program(RuleBasedStateMachine):
    stores: Stores
    leases = Bundle("leases")

    @initialize(items=st.lists(NEW_JOBS, min_size=3, max_size=6))
    def begin(self, items: list[NewJob]) -> None:
        self.stores.begin()
        self.model = Model(self.stores.now)
        self.enqueue_many("one", items, skip=True)

    def each(self, expected: Callable[[], Any], ask: Callable[[str, JobStore], Any]) -> Any:
        """Call every store; each must answer, or refuse, as the model does. Returns the model's answer."""
        try:
            answer, refusal = expected(), None
        except (ValueError, LookupError, PermissionError) as error:
            answer, refusal = error.args[0], REFUSALS[type(error)]
        for name, store in self.stores.all.items():
            try:
                found, refused = ask(name, store), None
            except JobError as error:
                found, refused = (
                    list(error.ids) if isinstance(error, DuplicateJobError) else answer,
                    type(error),
                )
            assert (refused, found) == (refusal, answer), name
        return answer

    @rule(queue=QUEUES, new=NEW_JOBS)
    def enqueue(self, queue: str, new: NewJob) -> None:
        def ask(_: str, store: JobStore) -> list[str]:
            job = store.enqueue(
                *(queue, new.payload),
                **{name: getattr(new, name) for name in ("id", "priority", "delay", "max_retries")},
            )
            assert store.get(job.id) == job
            return [job.id]

        self.each(lambda: self.model.enqueue(queue, [new], skip=False), ask)

    @rule(queue=QUEUES, items=st.lists(NEW_JOBS, max_size=4), skip=st.booleans())
    def enqueue_many(self, queue: str, items: list[NewJob], skip: bool) -> None:
        mode = "skip" if skip else "error"
        self.each(
            lambda: self.model.enqueue(queue, items, skip=skip),
            lambda _, store: store.enqueue_many(queue, items, on_duplicate=mode),
        )

    @rule(
        target=leases,
        queues=st.sampled_from([["one"], ["two"], ["one", "two"], ["two", "one"]]),
        limit=st.sampled_from([1, 1, 2, 5]),
        ttl=TTLS,
        worker=WORKERS,
        begins=st.sampled_from([True, True, False]),
    )
    def claim(self, queues: list[str], limit: int, ttl: float, worker: str, begins: bool) -> Any:
        expected = self.model.claim(queues, limit, ttl, worker, begins=begins)
        given: list[dict[str, Job]] = [{} for _ in expected]
        for name, store in self.stores.all.items():
            jobs = store.claim(queues, limit, lease_ttl=ttl, worker=worker, begun=None if begins else 0)
            assert [view(job) for job in jobs] == [job.view() for job in expected], name
            for place, job in enumerate(jobs):
                given[place][name] = job
        return multiple(
            *(
                HeldLease(job.id, job.seq, job.version, jobs)
                for job, jobs in zip(expected, given, strict=True)
            )
        )

    @rule(target=leases, more=st.sampled_from([0.0, 0.25, 40.0]), worker=WORKERS, begins=st.booleans())
    def lapse(self, more: float, worker: str, begins: bool) -> Any:
        """A rule that random steps would hit too seldom: all leases end, and the next claim takes the jobs."""
        expiries = [job.lease[0] for job in self.model.jobs.values() if job.lease]
        self.advance(max([0.0, *(at - self.model.now for at in expiries)]) + more)
        return self.claim(["one", "two"], 2, 2.0, worker, begins)

    @rule(lease=leases)
    def begin_job(self, lease: HeldLease) -> None:
        held = self.model.held(lease)
        if held is not None:
            held.begun = True
        for name, store in self.stores.all.items():
            (result,) = store.begin_many([lease.jobs[name]])
            assert (result.ok, isinstance(result.error, StaleLeaseError)) == (
                held is not None,
                held is None,
            ), name

    @rule(lease=leases)
    def ack(self, lease: HeldLease) -> None:
        self.settle(lease, self.model.ack, JobStore.ack)

    @rule(lease=leases)
    def release(self, lease: HeldLease) -> None:
        self.settle(lease, self.model.release, JobStore.release)

    @rule(lease=leases, error=ERRORS, retryable=st.booleans(), factor=FACTORS)
    def nack(self, lease: HeldLease, error: Any, retryable: bool, factor: float) -> None:
        self.stores.factor = factor
        self.settle(
            lease,
            lambda job: self.model.nack(job, *told(error), factor, retryable=retryable),
            lambda store, job: store.nack(job, error, retryable=retryable),
        )

    def settle(self, lease: HeldLease, expected: Callable[[ModelJob], Any], ask: Callable[..., Any]) -> None:
        """The operations that need a lease; without one, StaleLeaseError."""
        held = self.model.held(lease)
        if held is not None:
            expected(held)
        for name, store in self.stores.all.items():
            try:
                ask(store, lease.jobs[name])
                done = True
            except StaleLeaseError:
                done = False
            assert done == (held is not None), name

    @rule(lease=leases)
    def heartbeat(self, lease: HeldLease) -> None:
        held = self.model.held(lease)
        expires_at = None if held is None else self.model.heartbeat(held)
        for name, store in self.stores.all.items():
            try:
                beaten = store.heartbeat(lease.jobs[name]).lease
                assert beaten is not None
                found: float | None = beaten.expires_at.timestamp()
            except StaleLeaseError:
                found = None
            assert found == expires_at, name

    @rule(held=st.lists(leases, max_size=4))
    def ack_many(self, held: list[HeldLease]) -> None:
        self.settle_many(held, self.model.ack, JobStore.ack_many)

    @rule(held=st.lists(leases, max_size=4))
    def heartbeat_many(self, held: list[HeldLease]) -> None:
        self.settle_many(held, self.model.heartbeat, JobStore.heartbeat_many)

    @rule(held=st.lists(leases, max_size=4), error=ERRORS, factor=FACTORS)
    def nack_many(self, held: list[HeldLease], error: Any, factor: float) -> None:
        self.stores.factor = factor
        self.settle_many(
            held,
            lambda job: self.model.nack(job, *told(error), factor, retryable=True),
            lambda store, jobs: store.nack_many([Nack(job, error) for job in jobs]),
        )

    def settle_many(
        self, leases: list[HeldLease], expected: Callable[[ModelJob], Any], ask: Callable[..., Any]
    ) -> None:
        wanted = []
        for lease in leases:
            held = self.model.held(lease)
            wanted.append((lease.id, held is not None))
            if held is not None:
                expected(held)
        for name, store in self.stores.all.items():
            results = ask(store, [lease.jobs[name] for lease in leases])
            assert [(result.job_id, result.ok) for result in results] == wanted, name
            assert [isinstance(result.error, StaleLeaseError) for result in results] == [
                not ok for _, ok in wanted
            ], name

    @rule(job_id=IDS, aim=AIMS)
    def retry(self, job_id: str, aim: str | None) -> None:
        job_id = self.aimed(job_id, aim)
        self.each(lambda: self.model.retry(job_id), lambda _, store: store.retry(job_id) and None)

    @rule(job_id=IDS, aim=AIMS)
    def discard(self, job_id: str, aim: str | None) -> None:
        job_id = self.aimed(job_id, aim)
        self.each(lambda: self.model.discard(job_id), lambda _, store: store.discard(job_id))

    def aimed(self, job_id: str, state: str | None) -> str:
        """A job in that state, if there is one."""
        return next((job.id for job in self.model.jobs.values() if job.state == state), job_id)

    @rule(older_than=st.sampled_from([0.0, 2.0, 40.0]))
    def prune(self, older_than: float) -> None:
        self.each(lambda: self.model.prune(older_than), lambda _, store: store.prune(older_than))

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 2.0, 8.0, 8.0, 40.0]))
    def advance(self, seconds: float) -> None:
        self.stores.advance(seconds)
        self.model.now = self.stores.now

    @rule()
    def count(self) -> None:
        expected = self.model.stats()
        for name, store in self.stores.all.items():
            found = {
                queue: Counter({kind: n for kind in KINDS if (n := getattr(stats, kind))})
                for queue, stats in store.stats().items()
            }
            assert found == expected, name

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        expected = [job.view() for job in sorted(self.model.jobs.values(), key=lambda job: job.seq)]
        for name, store in self.stores.all.items():
            assert [view(job) for job in store.list()] == expected, name

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.stores.reached.update(self.model.reached)


KINDS = ("ready", "delayed", "in_flight", "expired", "failed", "succeeded")


def told(error: Any) -> tuple[str | None, str | None]:
    """An error's text and kind, as a job stores them."""
    return None if error is None else str(error), type(error).__name__ if isinstance(
        error, Exception
    ) else None


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with PostgresServer(fsync=False) as server:
        made = Stores(tmp_path, server.create_database("model"))
        yield made
        made.close()


@pytest.mark.campaign
@pytest.mark.timeout(600)  # a difference is shrunk before it is reported
@pytest.mark.clause(
    *("J-01", "J-02", "J-03", "J-04", "J-05", "J-06", "J-07", "J-08", "J-09", "J-10", "J-13", "J-14", "J-16"),
    *("J-18", "J-19", "J-20", "J-27", "J-28", "J-31"),
)
def test_every_store_does_what_the_model_does(stores: Stores) -> None:
    programs = campaign_size(4000)
    machine = type("Program", (Program,), {"stores": stores})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=programs,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not FULL,  # the twentieth is always the same; the full run varies
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert stores.runs >= programs
    for move in TRANSITIONS:
        times = stores.reached[move.source, move.trigger, move.target, move.when]
        print(f"{move.source or '-'} -> {move.trigger} -> {move.target or '-'} {move.when}: {times} times")
        assert times > 0, f"never reached: {move}"
    assert len(stores.reached) == len(TRANSITIONS)
