"""Claims read what can be claimed, and not what is finished, delayed or leased, however many of those there are."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from conquiet.jobs import open_store
from conquiet.jobs.backends.postgres import backend as postgres_module
from conquiet.jobs.backends.rows import EXPIRED_ERROR
from conquiet.jobs.backends.sqlite import steps as sqlite_module

MANY = 50_000
CLAIMS = 20
HISTORY = """
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
    finished_at, lease_version, lease_token, lease_expires_at, lease_ttl, lease_worker, lease_started_at)
"""


@pytest.fixture(scope="module")
def postgres(quick_postgres: PostgresServer) -> Iterator[str]:
    dsn = quick_postgres.create_database("plans")
    with open_store(dsn), psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            HISTORY
            + f"""SELECT 'done' || n, 'orders', '{{}}', 5, CASE WHEN n % 10 = 0 THEN 'Failed' ELSE 'Succeeded' END, 3,
                false, NULL::timestamptz, now(), now(), 1, NULL::text, NULL::timestamptz, 5, 'w', now()
                FROM generate_series(1, {MANY}) AS n
            UNION ALL SELECT 'late' || n, 'orders', '{{}}', 5, 'Ready', 3, true, now() + interval '1 day', now(),
                NULL, 0, NULL, NULL, NULL, NULL, NULL FROM generate_series(1, {MANY}) AS n
            UNION ALL SELECT 'held' || n, 'orders', '{{}}', 5, 'InFlight', 3, false, NULL, now(),
                NULL, 1, gen_random_uuid()::text, now() + interval '1 day', 86400, 'w', now()
                FROM generate_series(1, {MANY // 10}) AS n"""
        )
        admin.execute("VACUUM ANALYZE conquiet_jobs")
    yield dsn
    quick_postgres.drop_database("plans")


def reads(dsn: str) -> dict[str, int]:
    """How many rows have been read so far, by sequential scans and by each index."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        rows = admin.execute(
            "SELECT 'table', coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables"
            " WHERE relname = 'conquiet_jobs'"
            " UNION ALL SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'conquiet_jobs'"
        ).fetchall()
    return {name: int(number) for name, number in rows}


@pytest.mark.clause("J-04")
def test_postgresql_reads_only_what_it_claims(postgres: str) -> None:
    before = reads(postgres)
    with open_store(postgres) as store:
        store.enqueue_many("orders", [{}] * CLAIMS * 5)
        for _ in range(CLAIMS):
            assert len(store.claim("orders", 5, lease_ttl=600.0)) == 5
        assert store.claim(["orders", "empty"], 5) == []
    after = wait_for_statistics(postgres, before)
    read = {name: after[name] - before[name] for name in after}
    assert read["table"] == 0
    assert read["conquiet_jobs_ready"] <= CLAIMS * 5 * 5  # includes dead entries of earlier claims
    assert read["conquiet_jobs_delayed"] <= 2 * CLAIMS  # one entry each: the first that comes due
    assert read["conquiet_jobs_leased"] <= 2 * CLAIMS


@pytest.mark.clause("J-04")
def test_postgresql_reads_only_the_first_that_comes_due(postgres: str) -> None:
    """A waiting worker asks for this again and again."""
    before = reads(postgres)
    with open_store(postgres) as store:
        job = store.enqueue("orders", {})
        with store.listen("orders", "empty"):
            pass
        store.discard(job.id)
    after = wait_for_statistics(postgres, before)
    for name in ("table", "conquiet_jobs_delayed", "conquiet_jobs_leased"):
        assert after[name] - before[name] <= 1, name


def wait_for_statistics(dsn: str, before: dict[str, int]) -> dict[str, int]:
    """Wait until the counts are visible: a connection reports them a moment after it ends."""
    while (after := reads(dsn))["conquiet_jobs_ready"] == before["conquiet_jobs_ready"]:
        pass
    return after


@pytest.mark.clause("J-04")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("statement", ["claim_ready", "claim"])
def test_postgresql_plans_no_scan_of_the_table(postgres: str, plan: str, statement: str) -> None:
    values = {"queues": ["orders", "other"], "limit": 10, "ttl": 5.0, "worker": "w", "max_lease_expiries": 20}
    with psycopg.connect(postgres) as connection:
        connection.execute(f"SET plan_cache_mode TO {plan}")
        explained = connection.execute(
            "EXPLAIN " + postgres_module._SQL[statement],
            {**values, "expired_error": EXPIRED_ERROR, "token": "t-"},
            prepare=True,
        ).fetchall()
        connection.rollback()
    text = "\n".join(row[0] for row in explained)
    assert "Seq Scan on conquiet_jobs" not in text
    for index in ("conquiet_jobs_ready", "conquiet_jobs_delayed", "conquiet_jobs_leased"):
        assert index in text
    assert statement == "claim_ready" or re.search(r"retry_at <= ", text)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    open_store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        numbers = f"WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {MANY})"
        connection.execute(
            numbers
            + HISTORY
            + """SELECT 'done' || n, 'orders', '{}', 5, CASE WHEN n % 10 = 0 THEN 'Failed' ELSE 'Succeeded' END, 3,
                0, NULL, 1, 1, 1, NULL, NULL, 5, 'w', 1 FROM c
            UNION ALL SELECT 'late' || n, 'orders', '{}', 5, 'Ready', 3, 1, 9e9, 1, NULL, 0, NULL, NULL, NULL, NULL,
                NULL FROM c
            UNION ALL SELECT 'held' || n, 'orders', '{}', 5, 'InFlight', 3, 0, NULL, 1, NULL, 1, 'token' || n, 9e9,
                9e9, 'w', 1 FROM c WHERE n % 10 = 0"""
        )
    connection.close()
    return path


@pytest.mark.clause("J-04")
@pytest.mark.parametrize("analyzed", [False, True])
def test_sqlite_plans_no_scan_of_the_table(sqlite: Path, analyzed: bool) -> None:
    values: dict[str, Any] = {
        "queues": json.dumps(["orders", "other"]),
        "limit": 10,
        "now": 1e9,
        "until": 1e9 + 5.0,
        "ttl": 5.0,
        "worker": "w",
        "token": "t-",
        "max_lease_expiries": 20,
        "expired_error": EXPIRED_ERROR,
    }
    connection = sqlite3.connect(sqlite)
    if analyzed:
        connection.execute("ANALYZE")
    for statement in ("promote", "late", "claim_ready", "claim"):
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_module._SQL[statement]}", values).fetchall()
        used = [row[3] for row in plan if "conquiet_jobs" in row[3]]
        assert used
        for line in used:
            assert re.match(
                r"SEARCH conquiet_jobs USING (INTEGER PRIMARY KEY \(rowid=|(COVERING )?INDEX conquiet_jobs_"
                r"(ready \(queue=|delayed \(queue=\? AND retry_at<|leased \(queue=\? AND lease_expires_at<))",
                line,
            ), line
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_module._SQL['next_due']}", values).fetchall()
    used = [row[3] for row in plan if "conquiet_jobs" in row[3] or "TEMP" in row[3]]
    assert len(used) == 3  # the first entry of each index, without sorting
    for line in used:
        assert re.match(
            r"SEARCH conquiet_jobs USING (COVERING )?INDEX conquiet_jobs_\w+ \(queue=\?\)", line
        ), line
    connection.close()


@pytest.mark.clause("J-04")
def test_sqlite_works_as_little_with_a_long_history_as_without(sqlite: Path, tmp_path: Path) -> None:
    long, short = (work_of_claims(path) for path in (sqlite, tmp_path / "short.db"))
    assert long < 1.3 * short


def work_of_claims(path: Path) -> int:
    """Steps of SQLite's virtual machine for a series of claims, in hundreds."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with open_store(f"sqlite:///{path}") as store:
        store.enqueue_many("orders", [{}] * CLAIMS * 5)
        connection = store.operations.backend._connection  # type: ignore[attr-defined]
        connection.set_progress_handler(step, 100)
        for _ in range(CLAIMS):
            assert len(store.claim("orders", 5, lease_ttl=600.0)) == 5
        assert store.claim("orders") == []
        connection.set_progress_handler(None, 0)
    return steps
