"""Runs of the Spark source and sinks without Spark: what it does on the driver and in tasks, called by hand.

Redis, PostgreSQL and SQLite are real. A run ends with the violations that it saw; none for the real code.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from redis import Redis

from conquiet.errors import ConquietError, ConsumerTakenError, StagingLostError
from conquiet.jobs import JobStore, open_store
from conquiet.queue import connect
from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.streams import StreamSink
from conquiet.spark.sink.writers import Staged
from conquiet.spark.source.keeper import Keeper
from conquiet.spark.source.ledger import Ledger
from conquiet.verify.history import Violation
from tests.spark.sink.sinking import (
    QUEUE,
    STREAM,
    arrow,
    batch,
    entries,
    job_rows,
    job_sink,
    stream_sink,
    texts,
)
from tests.spark.source.protocol import STEPS, Driver, lapse
from tests.spark.source.queries import GROUP, fill, pending

Broken = Callable[[str, str], None]


def play_spark(run: str, url: str, postgres_dsn: str, folder: Path) -> list[Violation]:
    found: list[Violation] = []

    def broken(kind: str, message: str) -> None:
        found.append(Violation(kind, None, message))

    with connect(url) as redis:
        redis.flushdb()
        if run == "spark source":
            _restarts(redis, url, broken)
            _available_now(redis, url, broken)
            _leases(redis, broken)
            _losses(redis, broken)
            _heartbeats(redis, broken)
        elif run == "spark stream sink":
            _stream_sink(redis, url, broken)
        elif run == "spark jobs on SQLite":
            _job_sink(f"sqlite:///{folder}/{secrets.token_hex(4)}.db", broken)
        else:
            with psycopg.connect(postgres_dsn, autocommit=True) as server:
                tables = "conquiet_jobs, conquiet_schema, conquiet_spark_staging, conquiet_spark_attempts"
                server.execute(f"DROP TABLE IF EXISTS {tables}, conquiet_spark_batches CASCADE")
            _job_sink(postgres_dsn, broken)
    return found


RUNS = ("spark source", "spark stream sink", "spark jobs on SQLite", "spark jobs on PostgreSQL")


def _compare(wanted: Sequence[str], got: Sequence[str], broken: Broken, when: str) -> None:
    lost, doubled = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    if lost:
        broken("lost", f"{when}: {lost.total()} are missing")
    if doubled:
        broken("doubled", f"{when}: {doubled.total()} too many")


# -- the source


def _restarts(redis: Redis, url: str, broken: Broken) -> None:
    """A driver dies at each step of its second batch and comes back under another name."""
    for step in STEPS:
        redis.flushdb()
        ids = fill(redis, range(350))
        driver = Driver(url)
        driver.run(consumer="before", die_at=step, nth=2)
        if step == "written":
            held = {
                row["message_id"].decode() for row in redis.xpending_range(STREAM, GROUP, "-", "+", 1_000)
            }
            if not set(driver.sink[1]) <= held:
                broken("acknowledged-early", "a batch that is not committed is not pending")
        lapse(redis)
        try:
            driver.run(consumer="after", partitions=3)
        except ConquietError as error:
            broken("stuck", f"killed at {step}: it does not start again: {error}")
            continue
        _compare(ids, driver.ids, broken, f"killed at {step}")
        if any(before != after for before, after in driver.replays):
            broken("other-rows", f"killed at {step}: a replayed batch has other rows")
        if pending(redis):
            broken("left-pending", f"killed at {step}: {pending(redis)} entries")


def _available_now(redis: Redis, url: str, broken: Broken) -> None:
    redis.flushdb()
    ids = fill(redis, range(100))
    driver = Driver(url)
    driver.run(die_at="planned", limit=40)
    lapse(redis)
    driver.run(limit=100, available_now=True, meanwhile=lambda: fill(redis, range(500)))
    if redis.xinfo_groups(STREAM)[0]["last-delivered-id"].decode() != ids[-1]:
        broken("claimed-early", "entries after the bound were claimed")


def _ledger(redis: Redis, consumer: str = "one", query: str = "q", **more: Any) -> Ledger:
    return Ledger(redis, STREAM, GROUP, consumer, query, **more)


def _leases(redis: Redis, broken: Broken) -> None:
    """A second query is refused while the first is alive, and the first when it was replaced."""
    for consumer, query in (("one", "another"), ("another", "q")):
        redis.flushdb()
        fill(redis, range(20))
        first = _ledger(redis)
        first.open()
        looks: list[float] = []

        def goes_on(seconds: float, first: Ledger = first, looks: list[float] = looks) -> None:
            looks.append(seconds)
            if len(looks) == 1:
                for key in redis.scan_iter("*:lease"):
                    redis.pexpire(key, 5_000)
            elif len(looks) < 5:
                first.renew()
            else:
                lapse(redis)

        try:
            _ledger(redis, consumer, query, sleep=goes_on).open()
            broken("two-holders", "a second query runs beside the first")
        except ConsumerTakenError:
            pass
        lapse(redis)
        successor = _ledger(redis, consumer, query)
        successor.open()
        try:
            first.claim(5)
            broken("two-holders", "a query that was replaced goes on")
        except ConsumerTakenError:
            pass
        if successor.claim(5) is None:
            broken("two-holders", "the entries of the second are gone")


def _losses(redis: Redis, broken: Broken) -> None:
    redis.flushdb()
    ledger = _ledger(redis)
    ledger.open()
    for number in range(1, 21):
        redis.xadd(STREAM, {"data": "{}"}, id=f"1-{number}")
    ledger.claim(5)
    redis.xtrim(STREAM, maxlen=8, approximate=False)
    ledger.claim(4)
    ledger.claim(2)
    if ledger.lost() != 7:
        broken("loss", f"7 entries are gone, and {ledger.lost()} were counted")


def _heartbeats(redis: Redis, broken: Broken) -> None:
    """What is held is refreshed, what a recovery worker has taken is not taken back."""
    redis.flushdb()
    ids = fill(redis, range(20))
    ledger = _ledger(redis)
    keeper = Keeper(ledger, block_entries=10, ahead=0, heartbeat=0.1)
    keeper.run(keeper.next_batch(20, ""), "")
    redis.xclaim(STREAM, GROUP, "thief", 0, [ids[0]], idle=60_000, justid=True)
    redis.xclaim(STREAM, GROUP, "one", 0, [ids[-1]], idle=60_000, justid=True)
    for _ in range(3):
        keeper._refreshed = 0.0  # the time has come
        keeper._to_refresh.clear()
        for _ in range(3):
            with keeper._io:
                keeper._step()
    keeper.close()
    rows: dict[str, Any] = {
        row["message_id"].decode(): row for row in redis.xpending_range(STREAM, GROUP, "-", "+", 100)
    }
    if rows[ids[-1]]["time_since_delivered"] >= 60_000:
        broken("left-stale", "an entry of a running batch was not refreshed")
    if rows[ids[0]]["consumer"] != b"thief":
        broken("two-holders", "an entry was taken back from a recovery worker")


# -- the sinks


class _Cut(Exception):
    """The driver dies here."""


class _CutSink(StreamSink):
    """One whose driver dies after so many steps of its commit."""

    steps_left = 0

    def _journal(self, exchange: Any, batch: Any) -> Any:
        journal = super()._journal(exchange, batch)
        step = journal.step

        def counted(batch: bytes, at: bytes, staging: bytes) -> bool:
            if self.steps_left == 0:
                raise _Cut
            self.steps_left -= 1
            return step(batch, at, staging)

        journal.step = counted  # type: ignore[method-assign]
        return journal


def _stage_texts(sink: StreamSink, number: int, *partitions: list[str]) -> list[Staged]:
    return [
        sink.stage(
            (arrow(rows[begin : begin + 200]) for begin in range(0, len(rows), 200)),
            batch(number),
            secrets.token_hex(8),
        )
        for rows in partitions
    ]


def _stream_sink(redis: Redis, url: str, broken: Broken) -> None:
    for steps in range(5):
        redis.flushdb()
        sink, rows = stream_sink(url), texts(1_000)
        cut = stream_sink(url)
        cut.__class__ = _CutSink
        cut.steps_left = steps  # type: ignore[attr-defined]
        try:
            cut.publish(_stage_texts(cut, 3, rows[:600], rows[600:]), batch(3))
        except _Cut:
            pass
        sink.publish(_stage_texts(sink, 3, rows), batch(3))
        _compare(rows, entries(redis), broken, f"cut after {steps} steps")
        for again in (3, 2):  # a replay of the last batch, and of one before
            sink.publish(_stage_texts(sink, again, rows), batch(again))
        _compare(rows, entries(redis), broken, "published again")
        sink.publish(_stage_texts(sink, 4, texts(300, 1_000)), batch(4))
        _compare(texts(1_300), entries(redis), broken, "the next batch")
        if any(redis.type(key) in (b"list", b"set") for key in redis.scan_iter()):
            broken("left-staged", "staged rows are left")
    staged = _stage_texts(sink, 5, texts(200))
    (key,) = redis.scan_iter("*:staging:*")
    redis.delete(key)
    try:
        sink.publish(staged, batch(5))
        broken("loss", "staged rows were gone, and nobody was told")
    except StagingLostError:
        pass


def _stage_jobs(sink: JobSink, number: int, *partitions: list[str]) -> list[Staged]:
    return [sink.stage(iter([job_rows(ids)]), batch(number), secrets.token_hex(8)) for ids in partitions]


def _ids(store: JobStore) -> list[str]:
    return [job.id for job in store.list(queue=QUEUE, limit=1_000)]


def _drain(store: JobStore) -> None:
    while jobs := store.claim(QUEUE, 1_000):
        store.ack_many(jobs)
    store.prune(0)


def _execute(dsn: str, statement: str) -> list[Any]:
    if dsn.startswith("sqlite"):
        connection = sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    with psycopg.connect(dsn, autocommit=True) as server:
        cursor = server.execute(statement)
        return cursor.fetchall() if cursor.description else []


def _job_sink(dsn: str, broken: Broken) -> None:
    with open_store(dsn) as store:
        sink = job_sink(dsn)
        sink.publish(_stage_jobs(sink, 1, ["a", "b"], ["c"]), batch(1))
        _compare(["a", "b", "c"], _ids(store), broken, "the first batch")
        _drain(store)
        for again in (1, 0):  # done and pruned: only the journal knows that they were there
            sink.publish(_stage_jobs(sink, again, ["a", "b", "c"]), batch(again))
        _compare([], _ids(store), broken, "published again")
        _stage_jobs(sink, 2, ["loser"])  # an attempt that Spark did not choose
        others = _stage_jobs(sink, 9, ["late"])  # a later batch, already staged
        sink.publish(_stage_jobs(sink, 2, ["d", "e"]), batch(2))
        _compare(["d", "e"], _ids(store), broken, "the next batch")
        left = _execute(dsn, "SELECT id FROM conquiet_spark_staging")
        if [one for (one,) in left] != ["late"]:
            broken("left-staged", f"staged are {left}")
        _drain(store)
        _execute(dsn, "DELETE FROM conquiet_spark_staging")
        try:
            sink.publish(others, batch(9))
            broken("loss", "staged rows were gone, and nobody was told")
        except StagingLostError:
            pass
        _compare([], _ids(store), broken, "nothing of a batch that is not complete")
        sink.publish(_stage_jobs(sink, 9, ["late"]), batch(9))  # the failed one is not recorded
        _compare(["late"], _ids(store), broken, "the batch written again")
