"""Servers killed -9 and restarted under running workers: nothing acknowledged is lost, and work resumes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.errors import QueueConnectionError
from conquiet.jobs import (
    JobState,
    JobStore,
    JobWorker,
    NewJob,
    RetrySchedule,
    StoreUnavailableError,
    open_store,
)
from conquiet.queue import HandledEntries, connect
from conquiet.verify.history import History, check
from conquiet.verify.recording.jobs import add_unwritten, record
from conquiet.verify.recording.streams import RecordedQueue
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record, percentiles
from tests.faults.jobs.test_connections import Handlers
from tests.faults.queue.test_connections import Consumers, settings
from tests.faults.recovery import double_valid_leases, refused
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects

RETRY = RetrySchedule(max_retries=1_000, base_seconds=0.0)
T = TypeVar("T")


def patiently(ask: Callable[[], T], error: type[Exception]) -> T:
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask()
        except error:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.campaign
@pytest.mark.timeout(180)
@pytest.mark.clause("J-21", "J-23")
def test_postgresql_killed_and_started_again(tmp_path: Path, record_figure: Record) -> None:
    kills, chance = campaign_size(50), new_chance()
    recoveries: list[float] = []
    ids: list[str] = []
    with (
        PostgresServer() as server,
        open_store(server.dsn, retry=RETRY) as store,  # the producer sets how often a job may fail
        History(tmp_path / "history") as history,
        ExitStack() as workers,
    ):
        effects = Effects(store)

        def enqueue() -> None:
            new = [NewJob({"n": n}, id=f"job-{n}") for n in range(len(ids), len(ids) + 20)]
            names = [job.id or "" for job in new]
            with history.operation("enqueue", *names):
                patiently(lambda: store.enqueue_many("q", new, on_duplicate="skip"), StoreUnavailableError)
            ids.extend(names)

        def more_succeeded(before: int) -> bool:
            return succeeded(store) > before

        for _ in range(2):  # a worker that loses its lease in an outage loses it to the other one
            own = workers.enter_context(open_store(server.dsn, retry=RETRY, max_lease_expiries=1_000))
            handlers = Handlers(record(own, history))
            workers.enter_context(
                Running(JobWorker(own, handlers.effect, queues="q", lease_ttl=1.0, concurrency=4))
            )
        for _ in range(kills):
            enqueue()
            time.sleep(chance.uniform(0.0, 0.05))
            server.kill()
            server.start()
            began, before = time.monotonic(), succeeded(store)
            enqueue()
            until(partial(more_succeeded, before), 60)
            recoveries.append(time.monotonic() - began)
        until(lambda: succeeded(store) == len(ids), 60)
        workers.close()
        add_unwritten(store, history, ids)
        states = Counter(job.state if (job := store.get(job_id)) else None for job_id in ids)
        numbers = effects.numbers()
    lost = len(ids) - states[JobState.SUCCEEDED]
    doubled = len(numbers) - len(set(numbers))
    verdict = check(tmp_path / "history", fenced=True)
    record_figure(
        "PostgreSQL killed -9 and started again under workers",
        n=kills,
        lost=lost,
        doubled=doubled,
        jobs=len(ids),
        double_valid_leases=double_valid_leases(verdict),
        stale_holders_refused=refused(tmp_path / "history"),
        first_job_done_after=percentiles(recoveries),
    )
    verdict.raise_if_broken()
    assert (lost, doubled, numbers) == (0, 0, list(range(len(ids))))


def succeeded(store: JobStore) -> int:
    stats = patiently(lambda: store.stats("q"), StoreUnavailableError)
    return stats["q"].succeeded if "q" in stats else 0


@pytest.mark.campaign
@pytest.mark.timeout(180)
@pytest.mark.clause("S-21", "C-14")
def test_redis_killed_and_started_again(
    redis_server: RedisServer, postgres_dsn: str, tmp_path: Path, record_figure: Record
) -> None:
    """With appendfsync always. A consumer ends with an error each time, and its process starts it again."""
    kills, chance = campaign_size(40), new_chance()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE effects (entry_id TEXT, n INTEGER)")
        HandledEntries().create_table(connection)
    recoveries: list[float] = []
    told: list[str] = []
    with (
        RedisServer(appendonly=True, appendfsync="always", binary=redis_server.binary) as server,
        psycopg.connect(postgres_dsn, autocommit=True) as admin,
        History(tmp_path / "history") as history,
        connect(server.url) as client,
    ):
        queue = RecordedQueue(client, settings("producer"), history)

        def handled() -> int:
            row = admin.execute("SELECT count(*) FROM effects").fetchone()
            assert row is not None
            return int(row[0])

        with Consumers(server.url, postgres_dsn, history) as consumers:

            def more_handled(before: int) -> bool:
                return bool(consumers.failures) or handled() > before

            for _ in range(kills):
                for _ in range(20):
                    told.append(patiently(lambda: queue.enqueue({"n": len(told)}), QueueConnectionError))
                time.sleep(chance.uniform(0.0, 0.02))
                server.kill()
                server.start()
                began, before = time.monotonic(), handled()
                told.append(patiently(lambda: queue.enqueue({"n": len(told)}), QueueConnectionError))
                until(partial(more_handled, before), 60)
                recoveries.append(time.monotonic() - began)
            drained = (0, 0)

            def backlog() -> tuple[int | None, int]:
                stats = patiently(queue.backlog_stats, QueueConnectionError)
                return stats.lag, stats.pending

            until(lambda: consumers.failures or backlog() == drained, 60)
        assert consumers.failures == []
        effects = Counter(entry_id for (entry_id,) in admin.execute("SELECT entry_id FROM effects"))
    lost = len(set(told) - effects.keys())
    doubled = effects.total() - len(effects)
    verdict = check(tmp_path / "history")
    record_figure(
        f"{redis_server.flavour} killed -9 and started again under consumers",
        n=kills,
        lost=lost,
        doubled=doubled,
        messages=len(told),
        double_valid_leases=double_valid_leases(verdict),
        first_message_handled_after=percentiles(recoveries),
    )
    verdict.raise_if_broken()
    assert (lost, doubled) == (0, 0)
