"""Rows damaged by writes past the store: each is shown and failed on its own, and hides no neighbour."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from conquiet.errors import StoreUnavailableError
from conquiet.jobs import Job, JobState, JobStore, JobWorker, NewJob, open_store
from conquiet.jobs.backends.protocol import JobRow
from tests.abuse.database import execute, execute_many

GOOD = {"good": True}
COLUMNS = (*JobRow._fields, "waiting")
DURABLE = pytest.mark.parametrize("job_dsn", ["sqlite", "postgresql"], indirect=True)
SQLITE = pytest.mark.parametrize("job_dsn", ["sqlite"], indirect=True)
NO_UTF_8 = "CAST(x'ff41' AS text)"  # SQLite accepts any bytes as text

# Every value in SQL. SQLite accepts any of them in any column; PostgreSQL refuses most.
ANYTHING = [
    *("NULL", "0", "-1", "1.5", "9223372036854775807", "-9223372036854775808", "1e300", "-1e300"),
    *("9e999", "-9e999", "''", "'text'", "'Ready'", "x''", "x'ff'", "x'5b5d'", NO_UTF_8),
]
TIMES = ["infinity", "-infinity", "4713-01-01 BC", "20000-01-01", "0001-01-01"]
ANYTHING_TYPED = [
    *("NULL", "0", "-1", "2147483647", "-2147483648", "1e300", "'NaN'", "''", "'text'"),
    *(f"'{time}'" for time in TIMES),
]
HISTORIES = [
    *(
        '"[1]"',
        "[1]",
        "[[]]",
        "{}",
        '{"a": 1}',
        "5",
        "null",
        "true",
        '"text"',
        "[null]",
        "[" * 500 + "]" * 500,
    ),
    *('[["1", "w", 1, 2, "x", null, null, null]]', '[[1, "w", 1e300, 2, "x", null, null, null]]'),
    *('[[1, "w", 1, 2, "x", null, null]]', '[[1, null, 1, 2, "x", null, null, null]]'),
]
BROKEN_HISTORIES = ["", "text", "[", "[" * 100_000, "[1e999]", '{"a"', "\N{SNOWMAN}", "[NaN]"]

STATES = {  # a row of each kind as it is stored; the lease of `lapsed` is over
    "ready": "",
    "delayed": "waiting = '1', retry_at = {past}",
    "held": "state = 'InFlight', lease_token = 't', lease_worker = 'other', lease_version = 1, lease_ttl = 5, "
    "lease_started_at = {past}, lease_expires_at = {future}",
    "lapsed": "state = 'InFlight', lease_token = 't', lease_worker = 'other', lease_version = 1, lease_ttl = 5, "
    "lease_started_at = {past}, lease_expires_at = {past}",
    "succeeded": "state = 'Succeeded', lease_worker = 'other', lease_version = 1, lease_started_at = {past}, "
    "finished_at = {past}",
    "failed": "state = 'Failed', finished_at = {past}, error = 'it failed'",
}


def damages(is_sqlite: bool) -> Iterator[tuple[str, str]]:
    for column in COLUMNS:
        for value in ANYTHING if is_sqlite else ANYTHING_TYPED:
            yield column, value
    for history in HISTORIES + (BROKEN_HISTORIES if is_sqlite else []):
        yield "attempts", f"'{history}'"


def worker(store: JobStore, seen: list[str], isolation: str = "thread") -> JobWorker:
    def handler(job: Job) -> None:
        seen.append(job.id)

    async def handler_async(job: Job) -> None:
        seen.append(job.id)

    called = handler_async if isolation == "async" else handler
    return JobWorker(store, called, queues="q", worker="ours", concurrency=2, isolation=isolation)


class Table:
    """The table of jobs, written past the store in one transaction."""

    def __init__(self, dsn: str) -> None:
        self.is_sqlite = dsn.startswith("sqlite")
        path = dsn.removeprefix("sqlite:///").partition("?")[0]
        self.connection: Any = (
            sqlite3.connect(path, isolation_level=None)
            if self.is_sqlite
            else psycopg.connect(dsn, autocommit=True)
        )

    def __enter__(self) -> Table:
        self.connection.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.execute("COMMIT")
        self.connection.close()

    def add(self, job_id: str, *changes: str) -> bool:
        """Add a row with these changes. False, and no row, if the database refuses them."""
        key = "'" + job_id.replace("'", "''") + "'"
        now = "1.0" if self.is_sqlite else "now()"
        self.connection.execute("SAVEPOINT one")
        try:
            self.connection.execute(
                "INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, enqueued_at) "
                f"VALUES ({key}, 'q', '{{}}', 5, 'Ready', 3, {now})"
            )
            for change in filter(None, changes):
                self.connection.execute(f"UPDATE conquiet_jobs SET {change} WHERE id = {key}")
        except (sqlite3.IntegrityError, psycopg.Error):
            self.connection.execute("ROLLBACK TO SAVEPOINT one")
            return False
        finally:
            self.connection.execute("RELEASE SAVEPOINT one")
        return True

    def add_damaged(self) -> tuple[list[str], list[str]]:
        """Every value in every column of every kind of row, with good rows in between. Returns the ids of both."""
        past, future = ("1.0", "99999999999.0") if self.is_sqlite else ("'2000-01-01'", "'9000-01-01'")
        bad, good = [], []
        for number, (column, value) in enumerate(damages(self.is_sqlite)):
            for kind, changes in STATES.items():
                job_id = f"{kind} {column} {value[:40]}"
                if self.add(job_id, changes.format(past=past, future=future), f"{column} = {value}"):
                    bad.append(job_id)
            good.append(f"good {number}")
            assert self.add(good[-1])
        return bad, good


def check_shown(store: JobStore, rows: int) -> list[Job]:
    """All rows are shown as jobs whose fields have the types that Job declares."""
    jobs = store.list(limit=100_000)
    assert len(jobs) == rows
    for job in jobs:
        assert Job.of_plain(job.plain()) == job
    assert all(isinstance(name, str) for name in store.stats())
    return jobs


@pytest.mark.parametrize(
    ("job_dsn", "isolation"),
    [("sqlite", "thread"), ("sqlite", "async"), ("postgresql", "async")],
    indirect=["job_dsn"],
)
def test_whatever_stands_in_a_column_the_worker_lives_and_serves_the_others(
    job_dsn: str, isolation: str
) -> None:
    is_sqlite = job_dsn.startswith("sqlite")
    seen: list[str] = []
    with open_store(job_dsn, max_lease_expiries=2) as store:
        with Table(job_dsn) as table:
            bad, good = table.add_damaged()
        assert len(bad) > (1500 if is_sqlite else 400)
        before = {job.id: job for job in check_shown(store, len(bad) + len(good))}
        for job_id in bad[::5]:
            assert store.get(job_id) == before.get(job_id)

        worker(store, seen, isolation).run_until_idle()
        assert set(seen) >= set(good)
        assert len(seen) == len(set(seen))
        after = check_shown(store, len(bad) + len(good))
        assert [job for job in after if job.id in good and job.state is not JobState.SUCCEEDED] == []
        # None was claimed and left in flight.
        assert [job for job in after if job.lease and job.lease.worker == "ours"] == []
        for job in after:
            was = before.get(job.id)
            if job.state is JobState.FAILED and was is not None and was.state is JobState.READY:
                assert job.error
                assert job.error.startswith("its ")
        store.enqueue("q", GOOD, id="afterwards")
        assert [job.id for job in store.claim("q", limit=10)] == ["afterwards"]


@DURABLE
def test_a_damaged_row_is_failed_with_the_name_of_its_column(job_dsn: str) -> None:
    is_sqlite = job_dsn.startswith("sqlite")
    damaged = {
        "attempts": ("[1]", "Expected `array`, got `int` - at `$[0]`"),
        "enqueued_at": (
            "9e999" if is_sqlite else "infinity",
            "a time of the years 1 to 9999 was expected",
        ),
    }
    if is_sqlite:
        damaged |= {
            "priority": ("text", "Expected `int`, got `str`"),
            "retries": ("text", "Expected `int`, got `str`"),
            "max_retries": ("1.5", "Expected `int`, got `float`"),
            "retry_at": ("text", "Expected `float | null`, got `str`"),
            "lease_expiries": ("text", "Expected `int`, got `str`"),
        }
    seen: list[str] = []
    with open_store(job_dsn) as store:
        store.enqueue_many("q", [NewJob(GOOD, id) for id in ("first", *damaged, "last")])
        for column, (value, _) in damaged.items():
            execute(job_dsn, f"UPDATE conquiet_jobs SET {column} = ? WHERE id = ?", value, column)
        for state in (JobState.READY, JobState.FAILED):
            for column, (_, reason) in damaged.items():
                job = store.get(column)
                assert job is not None
                assert (job.state, job.error) == (state, f"its {column} cannot be read: {reason}")
                assert job.lease is None
            worker(store, seen).run_until_idle()
        assert sorted(seen) == ["first", "last"]
        # Repaired, and retried by hand, it runs.
        mended = "'[]'" if is_sqlite else "'[]'::jsonb"
        execute(job_dsn, f"UPDATE conquiet_jobs SET attempts = {mended} WHERE id = 'attempts'")
        assert store.retry("attempts").error == damaged["attempts"][1].join(
            ["its attempts cannot be read: ", ""]
        )
        worker(store, seen).run_until_idle()
        assert "attempts" in seen


@SQLITE
@pytest.mark.parametrize("column", ["id", "priority", "correlation_id", "error", "attempts"])
def test_a_text_that_is_none_fails_its_own_job_only(job_dsn: str, column: str) -> None:
    """SQLite finds it when it fetches the rows, which fails the whole claim."""
    seen: list[str] = []
    with open_store(job_dsn) as store:
        store.enqueue_many("q", [NewJob(GOOD, id) for id in ("first", "bad", "last")])
        execute_many(job_dsn, f"UPDATE conquiet_jobs SET {column} = {NO_UTF_8} WHERE id = ?", [("bad",)])
        worker(store, seen).run_until_idle()
        assert sorted(seen) == ["first", "last"]
        (failed,) = store.list(state=JobState.FAILED)
        assert failed.id == ("\N{REPLACEMENT CHARACTER}A" if column == "id" else "bad")
        assert failed.error is not None
        assert failed.error.startswith("its ")
        assert column in failed.error


@DURABLE
def test_a_lease_that_is_damaged_while_it_is_held_disturbs_no_other(job_dsn: str) -> None:
    values = ["NULL", "0", "-1"]
    if job_dsn.startswith("sqlite"):
        values += ["'text'", "x'ff'", "9e999", NO_UTF_8]
    else:
        values += ["'NaN'", "'infinity'", "'-infinity'"]
    with open_store(job_dsn) as store:
        for column in ("lease_ttl", "lease_expires_at", "lease_started_at", "lease_worker", "lease_token"):
            for value in values:
                store.enqueue_many("q", [GOOD, GOOD])
                bad, good = store.claim("q", limit=2)
                with suppress(psycopg.Error):
                    execute(job_dsn, f"UPDATE conquiet_jobs SET {column} = {value} WHERE id = ?", bad.id)
                assert [result.ok for result in store.heartbeat_many([bad, good])][1]
                with suppress(StoreUnavailableError):  # if the new end of the lease is not a valid time
                    if store.heartbeat_many([bad])[0].ok:
                        store.heartbeat(bad)
                assert store.nack_many([bad, good])[1].ok
                for job in store.list(limit=1000):
                    assert Job.of_plain(job.plain()) == job
                execute(job_dsn, "DELETE FROM conquiet_jobs")
