"""PostgreSQL fails over to a real standby under load, or becomes read-only: workers go on, and what is lost is counted."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conquiet.embedded import PostgresServer
from conquiet.jobs import JobState, JobStore, JobWorker, RetrySchedule, StoreUnavailableError, open_store
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record, percentiles
from tests.faults.test_server_kills import patiently, succeeded
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert
from tests.topologies import PostgresPair

RETRY = RetrySchedule(max_retries=1_000, base_seconds=0.0)
GOES_ON_SECONDS = 30.0  # a generous bound for a busy machine; the figure says what it took


class Producer:
    """Enqueues one job after the other until its end. `acknowledged` are the numbers whose enqueue has returned."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        self.refused = 0

    def _run(self) -> None:
        n = 0
        while not self._ending.is_set():
            try:
                self._store.enqueue("q", {"n": n}, id=f"job-{n}")
                self.acknowledged.append(n)
            except StoreUnavailableError:
                self.refused += 1
                self._ending.wait(0.01)
            n += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(60)


class Load:
    """A producer and two workers on the pair, all with the DSN that names both servers."""

    def __init__(self, pair: PostgresPair, stack: ExitStack) -> None:
        self.store = stack.enter_context(open_store(pair.dsn, retry=RETRY))
        primary = stack.enter_context(open_store(pair.primary.dsn))
        self.effects = Effects(primary)
        self._stack = stack.enter_context(ExitStack())
        for _ in range(2):
            own = self._stack.enter_context(open_store(pair.dsn, retry=RETRY, max_lease_expiries=1_000))
            worker = JobWorker(own, insert, queues="q", concurrency=4, lease_ttl=1.0)
            self._stack.enter_context(Running(worker))
        self.producer = self._stack.enter_context(Producer(self.store))

    def fails_over(self, pair: PostgresPair, pause: float) -> float:
        """Return how long after the promotion the next job was done."""
        enough = succeeded(self.store) + 20
        until(lambda: succeeded(self.store) >= enough, 60)
        time.sleep(pause)
        pair.fail_over()
        began = time.monotonic()
        before = succeeded(self.store)
        until(lambda: succeeded(self.store) > before, GOES_ON_SECONDS)
        return time.monotonic() - began

    def judge(self, pair: PostgresPair) -> tuple[int, int, int]:
        """Stop the producer, wait for the rest. Return what was acknowledged, what of it is lost, effects done twice."""
        self.producer.__exit__(None, None, None)

        def drained() -> bool:
            stats = patiently(lambda: self.store.stats("q"), StoreUnavailableError)["q"]
            return stats.ready == stats.delayed == stats.in_flight == stats.expired == 0

        until(drained, 120)
        self._stack.close()
        with psycopg.connect(pair.primary.dsn) as client:
            numbers = [n for (n,) in client.execute("SELECT n FROM effects")]
            rows = client.execute(
                "SELECT id FROM conquiet_jobs WHERE state = %s", (JobState.SUCCEEDED.value,)
            )
            done = {job_id for (job_id,) in rows}
        assert {f"job-{n}" for n in numbers} == done  # each effect together with its ack
        told = self.producer.acknowledged
        return len(told), len({f"job-{n}" for n in told} - done), len(numbers) - len(set(numbers))


def judged(record_figure: Record, kind: str) -> tuple[int, int, int]:
    """Kill primaries under load and promote their standby; return how many jobs were acknowledged, lost, done twice."""
    promotions, chance = campaign_size(20), new_chance()
    took: list[float] = []
    with ExitStack() as stack:
        pair = stack.enter_context(PostgresPair(synchronous=kind == "a synchronous"))
        load = Load(pair, stack)
        for number in range(promotions):
            if number:
                pair.rebuild()
            took.append(load.fails_over(pair, chance.uniform(0.0, 0.1)))
        told, lost, doubled = load.judge(pair)
    record_figure(
        f"PostgreSQL killed -9, {kind} standby promoted under load",
        n=promotions,
        lost=lost,
        doubled=doubled,
        acknowledged=told,
        next_job_done_after=percentiles(took),
    )
    return told, lost, doubled


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_synchronous_standby_is_promoted_under_load(record_figure: Record) -> None:
    told, lost, doubled = judged(record_figure, "a synchronous")
    assert told > 0
    assert (lost, doubled) == (0, 0)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_what_an_asynchronous_standby_loses(record_figure: Record) -> None:
    """What the standby has not received when it is promoted is lost: measured, not judged."""
    told, lost, doubled = judged(record_figure, "an asynchronous")
    assert doubled == 0
    assert lost < told


def test_a_worker_leaves_a_server_that_is_read_only() -> None:
    """Its connections stay read-only although new ones are not: they must not be used again."""
    with PostgresServer(fsync=False) as server, psycopg.connect(server.dsn, autocommit=True) as admin:
        dsn = server.create_database("jobs")
        with open_store(dsn, retry=RETRY) as store:
            effects = Effects(store)
            worker = JobWorker(store, insert, queues="q", lease_ttl=1.0)
            with Running(worker) as running:
                store.enqueue("q", {"n": 0})
                until(lambda: worker.counts.succeeded == 1)
                admin.execute("ALTER DATABASE jobs SET default_transaction_read_only = on")
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'jobs'")
                until(lambda: "read-only" in refusal(store))  # first the connections that were ended
                admin.execute("ALTER DATABASE jobs RESET default_transaction_read_only")
                store.enqueue("q", {"n": 1})
                until(lambda: worker.counts.succeeded == 2, GOES_ON_SECONDS)
                running.stop()
            assert effects.numbers() == [0, 1]


def refusal(store: JobStore) -> str:
    try:
        store.enqueue("q", {"n": -1})
    except StoreUnavailableError as error:
        return str(error)
    return ""


def test_several_hosts_lead_to_the_one_that_can_be_written() -> None:
    with PostgresPair(synchronous=False) as pair:
        where = conninfo_to_dict(pair.standby.dsn)
        standby, primary = (f"127.0.0.1:{one.port}" for one in (pair.standby, pair.primary))
        login = f"postgresql://{where['user']}:{where['password']}@"
        for attributes in ("", "?target_session_attrs=read-write"):
            with open_store(f"{login}{standby},{primary}/postgres{attributes}") as store:
                assert store.enqueue("q", {}).queue == "q"
        with pytest.raises(StoreUnavailableError) as caught:
            open_store(f"{login}{standby}/postgres?target_session_attrs=read-write")
        assert "read-only" in str(caught.value)
        assert str(where["password"]) not in str(caught.value)
