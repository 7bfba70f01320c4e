"""The job sink by itself, on PostgreSQL and SQLite: staged, and published in one step, exactly once."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.errors import JobConfigError, SchemaVersionError, StagingLostError, StoreUnavailableError
from conquiet.jobs import JobStore, open_store
from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.writers import Staged
from tests.spark.sink.sinking import QUEUE, batch, job_rows, job_sink

pytestmark = pytest.mark.clause("P-05")

TABLES = ("conquiet_spark_staging", "conquiet_spark_attempts")


@pytest.fixture(params=["postgresql", "sqlite"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture
def store(dsn: str) -> Iterator[JobStore]:
    with open_store(dsn) as store:
        yield store


def execute(dsn: str, statement: str) -> list[Any]:
    if dsn.startswith("sqlite"):
        connection = sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    with psycopg.connect(dsn, autocommit=True) as server:
        cursor = server.execute(statement)
        return cursor.fetchall() if cursor.description else []


def left_behind(dsn: str) -> int:
    return sum(execute(dsn, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)


def stage(sink: JobSink, number: int, *partitions: list[str]) -> list[Staged]:
    return [
        sink.stage(iter([job_rows(ids[:3]), job_rows(ids[3:])]), batch(number), secrets.token_hex(8))
        for ids in partitions
    ]


def ids_of(store: JobStore) -> list[str]:
    return sorted(job.id for job in store.list(queue=QUEUE, limit=10_000))


def drain(store: JobStore) -> list[str]:
    """Do all the work there is, and prune it."""
    done = []
    while jobs := store.claim(QUEUE, 1_000):
        store.ack_many(jobs)
        done += [job.id for job in jobs]
    store.prune(0)
    return done


def test_rows_become_jobs(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn, maxRetries="7")
    rows = job_rows(
        ["a", "b", "c"],
        ['{"n":1}', '{"n":2}', '{"big":123456789012345678901234567890}'],
        priority=[9, None, 1],
        delay_seconds=[None, 3600.0, 0.0],
        correlation_id=["request-1", None, "request-3"],
    )
    staged = sink.stage(iter([rows]), batch(0), "1f")
    assert store.list(queue=QUEUE) == []  # not before the commit
    sink.publish([staged], batch(0))
    a, b, c = (store.get(name) for name in "abc")
    assert a
    assert b
    assert c
    assert [job.priority for job in (a, b, c)] == [9, 5, 1]
    assert [job.correlation_id for job in (a, b, c)] == ["request-1", None, "request-3"]
    assert c.payload == {"big": 123456789012345678901234567890}
    assert {job.max_retries for job in (a, b, c)} == {7}
    assert a.retry_at is None
    assert b.retry_at
    assert (b.retry_at - b.enqueued_at).total_seconds() == pytest.approx(3600)
    assert [job.id for job in store.claim(QUEUE, 10)] == ["c", "a"]  # b is not due
    assert left_behind(dsn) == 0


def test_a_batch_comes_in_once_whatever_was_done_with_its_jobs(dsn: str, store: JobStore) -> None:
    """The ids alone do not ensure it: they are free again when the jobs are done and pruned."""
    sink, ids = job_sink(dsn), [f"job-{n:02}" for n in range(10)]
    sink.publish(stage(sink, 0, ids[:6], ids[6:]), batch(0))
    assert sorted(drain(store)) == ids
    for number in (0, 0):
        sink.publish(stage(sink, number, ids[3:], ids[:3]), batch(number))
    assert drain(store) == []
    assert left_behind(dsn) == 0


def test_one_batch_goes_to_several_queues(dsn: str, store: JobStore) -> None:
    """As in `foreachBatch`, with one sinkId and batchId: each queue has its own journal, like each Redis stream."""
    sinks = {queue: job_sink(dsn, queue=queue) for queue in ("urgent", "slow", "slow 2")}
    for expected in (["1", "2"], []):  # the second time adds nothing, although the jobs are done and pruned
        staged = {queue: stage(sink, 4, [f"{queue}-1", f"{queue}-2"]) for queue, sink in sinks.items()}
        for queue, sink in sinks.items():
            sink.publish(staged[queue], batch(4))
        for queue in sinks:
            found = store.claim(queue, 10)
            store.ack_many(found)
            assert sorted(job.id for job in found) == [f"{queue}-{name}" for name in expected]
        store.prune(0)
    assert left_behind(dsn) == 0


def test_an_id_that_exists_is_left_as_it_is(dsn: str, store: JobStore) -> None:
    store.enqueue(QUEUE, {"first": True}, id="job-1")
    sink = job_sink(dsn)
    sink.publish(stage(sink, 0, ["job-0", "job-1"], ["job-1", "job-2", "job-2"]), batch(0))
    sink.publish(stage(sink, 1, ["job-2", "job-3"]), batch(1))  # another batch with an id of the last
    assert ids_of(store) == ["job-0", "job-1", "job-2", "job-3"]
    first = store.get("job-1")
    assert first
    assert first.payload == {"first": True}


def test_two_drivers_with_one_batch_publish_it_once(dsn: str, store: JobStore) -> None:
    sink, ids = job_sink(dsn), [f"job-{n:04}" for n in range(2_000)]
    both = [stage(sink, 0, ids[:900], ids[900:]) for _ in range(2)]
    errors: list[BaseException] = []

    def publish(staged: list[Staged]) -> None:
        try:
            sink.publish(staged, batch(0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(staged,)) for staged in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ids_of(store) == ids
    assert left_behind(dsn) == 0


def test_an_aborted_batch_leaves_nothing(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn)
    sink.discard(stage(sink, 0, ["a"], ["b"]), batch(0))
    assert left_behind(dsn) == 0
    assert ids_of(store) == []


def test_attempts_that_lost_are_removed_by_the_commit(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn)
    stage(sink, 0, ["a", "b"])  # of a killed driver, or the slower of two attempts
    sink.publish(stage(sink, 0, ["a", "b"]), batch(0))
    stage(sink, 0, ["a", "b"])  # ... of one that finished after the commit
    sink.publish(stage(sink, 1, ["c"]), batch(1))
    assert ids_of(store) == ["a", "b", "c"]
    assert left_behind(dsn) == 0


def test_what_others_have_staged_meanwhile_stays(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn)
    other = sink.stage(iter([job_rows(["other"])]), batch(0, "another query"), "ab")
    sink.publish(stage(sink, 0, ["a", "b"]), batch(0))
    sink.publish([other], batch(0, "another query"))
    assert ids_of(store) == ["a", "b", "other"]
    assert left_behind(dsn) == 0


def test_a_commit_does_not_wait_for_a_task_of_another_query(postgres_dsn: str) -> None:
    """That task is staging in a long transaction: its rows are left alone."""
    sink, begun, go_on = job_sink(postgres_dsn), threading.Event(), threading.Event()
    staged: list[Staged] = []

    def slow() -> Iterator[object]:
        yield job_rows(["slow-1"])
        begun.set()
        assert go_on.wait(30)
        yield job_rows(["slow-2"])

    thread = threading.Thread(target=lambda: staged.append(sink.stage(slow(), batch(0, "slow"), "ab")))
    thread.start()
    try:
        assert begun.wait(30)
        sink.publish(stage(sink, 0, ["a", "b"]), batch(0))
    finally:
        go_on.set()
        thread.join()
    sink.publish(staged, batch(0, "slow"))
    with open_store(postgres_dsn) as store:
        assert ids_of(store) == ["a", "b", "slow-1", "slow-2"]
    assert left_behind(postgres_dsn) == 0


def test_staging_and_journals_expire(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn, stagingSeconds="1", journalSeconds="1")
    old = "0" if dsn.startswith("sqlite") else "'2020-01-01'"
    staged = [sink.stage(iter([job_rows(["a"])]), batch(0, "abandoned"), "ab")]
    execute(dsn, f"UPDATE conquiet_spark_attempts SET staged_at = {old}")
    sink.publish([sink.stage(iter([job_rows(["b"])]), batch(0, "finished"), "cd")], batch(0, "finished"))
    assert left_behind(dsn) == 0
    execute(dsn, f"UPDATE conquiet_spark_batches SET published_at = {old}")
    sink.publish([sink.stage(iter([job_rows(["c"])]), batch(4), "ef")], batch(4))
    assert execute(dsn, "SELECT sink, batch FROM conquiet_spark_batches") == [('["query", "reports"]', 4)]
    with pytest.raises(StagingLostError, match="only 0 of 1 staged rows exist"):
        sink.publish(staged, batch(0, "abandoned"))


def test_staging_that_is_gone_is_an_error_and_publishes_nothing(dsn: str, store: JobStore) -> None:
    """For example after a crash of PostgreSQL: the table is unlogged."""
    sink = job_sink(dsn)
    staged = stage(sink, 0, ["a", "b"], ["c"])
    execute(dsn, "DELETE FROM conquiet_spark_staging WHERE id = 'b'")
    with pytest.raises(
        StagingLostError, match="batch 0 of query: only 2 of 3 staged rows exist; nothing was published"
    ):
        sink.publish(staged, batch(0))
    assert ids_of(store) == []
    sink.publish(stage(sink, 0, ["a", "b"], ["c"]), batch(0))  # the replay
    assert ids_of(store) == ["a", "b", "c"]


def test_odd_texts_arrive_as_they_are(dsn: str, store: JobStore) -> None:
    ids = ["a\n\\.\nb", 'tab\t"quote"\\', "ü,😀", "\\N", " ", "\\.", "\r\n", "x" * 255]
    payloads = ['{"nul":"\\u0000","a":"\\\\ \\"x\\" \\n"}', '{"a":\n1}'] * 4
    sink = job_sink(dsn)
    rows = job_rows(ids, payloads, correlation_id=ids[::-1])
    sink.publish([sink.stage(iter([rows]), batch(0), "1")], batch(0))
    for job_id, other in zip(ids, ids[::-1], strict=True):
        job = store.get(job_id)
        assert job
        assert job.correlation_id == other
        assert job.payload in ({"nul": "\0", "a": '\\ "x" \n'}, {"a": 1})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"ids": [None]}, "id is null"),
        ({"ids": [""]}, "id is empty"),
        ({"ids": ["x" * 256]}, "id is longer than 255"),
        ({"ids": ["a\0b"]}, "id holds NUL"),
        ({"ids": ["a"], "correlation_id": [""]}, "correlation_id is empty"),
        ({"ids": ["a"], "delay_seconds": [-1.0]}, "delay_seconds is negative"),
        ({"ids": ["a"], "delay_seconds": [float("nan")]}, "delay_seconds is negative, not a number"),
        ({"ids": ["a"], "priority": [2**40]}, "priority is not a whole number"),
        ({"ids": ["a"], "payloads": [None]}, "payload was refused: it is null"),
        ({"ids": ["a"], "payloads": ["[]"]}, "payload was refused: a JSON object was expected"),
        ({"ids": ["a"], "payloads": ['{"secret-1']}, "payload was refused: not UTF-8 JSON"),
    ],
)
def test_what_is_no_job_is_refused(dsn: str, store: JobStore, row: dict[str, Any], reason: str) -> None:
    sink = job_sink(dsn)
    with pytest.raises(JobConfigError, match=reason) as caught:
        sink.stage(iter([job_rows(["good"]), job_rows(**row)]), batch(0), "1")
    assert "secret" not in str(caught.value)


def test_a_failed_attempt_does_not_disturb_the_next(dsn: str, store: JobStore) -> None:
    sink = job_sink(dsn)
    with pytest.raises(JobConfigError):
        sink.stage(iter([job_rows(["a"]), job_rows([None])]), batch(0), "1f")
    sink.publish(stage(sink, 0, ["a", "b"]), batch(0))
    assert ids_of(store) == ["a", "b"]
    assert left_behind(dsn) == 0


def test_an_empty_database_gets_the_schema_and_another_version_is_refused(dsn: str) -> None:
    job_sink(dsn)
    with open_store(dsn, migrate="never") as store:
        assert ids_of(store) == []
    execute(dsn, "UPDATE conquiet_schema SET version = 99, oldest = 99")
    with pytest.raises(SchemaVersionError, match="newer"):
        job_sink(dsn)


def test_a_server_that_is_away_is_said_without_its_password() -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        job_sink("postgresql://app:hunter2@127.0.0.1:1/jobs")
    assert "hunter2" not in str(caught.value)
