"""Claims read what can be claimed, and not what is finished, delayed or leased, however many of those there are. Lists,
statistics and pruning read what they show or remove, and not all that is finished."""

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
from conquiet.jobs import JobState, NewJob, open_store
from conquiet.jobs.backends.postgres import backend as postgres_module
from conquiet.jobs.backends.postgres.pages import page_statement
from conquiet.jobs.backends.protocol import Listing
from conquiet.jobs.backends.rows import EXPIRED_ERROR, RANKED
from conquiet.jobs.backends.sqlite import steps as sqlite_module
from tests.index_reads import reads, wait_for_statistics

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
        admin.execute(
            "INSERT INTO conquiet_counts SELECT queue, state, count(*) FROM conquiet_jobs"
            " WHERE state IN ('Succeeded', 'Failed') GROUP BY queue, state"
        )
        admin.execute("VACUUM ANALYZE conquiet_jobs")
    yield dsn
    quick_postgres.drop_database("plans")


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


@pytest.mark.clause("J-04")
def test_postgresql_reads_few_of_the_many_that_are_due_together(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(
            f"""INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at)
            SELECT 'due' || n, 'crowd', '{{}}', n % 3, 'Ready', 3, true, now(), now() FROM generate_series(1, {MANY}) AS n"""
        )
        before = reads(postgres)
        with open_store(postgres) as store:
            store.enqueue("crowd", {})
            for _ in range(CLAIMS):
                jobs = store.claim("crowd", 5, lease_ttl=600.0)
                assert [job.priority for job in jobs] == [0] * 5
        after = wait_for_statistics(postgres, before)
        admin.execute("DELETE FROM conquiet_jobs WHERE queue = 'crowd'")
    assert after["table"] == before["table"]
    read = sum(
        after[f"conquiet_jobs_{name}"] - before[f"conquiet_jobs_{name}"] for name in ("due", "delayed")
    )
    assert read <= CLAIMS * 5 * (RANKED + 5)  # some twice, and dead entries of earlier claims


@pytest.mark.clause("J-04")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("statement", ["claim_ready", "claim", "claim_onward"])
def test_postgresql_plans_no_scan_of_the_table(postgres: str, plan: str, statement: str) -> None:
    values = {"queues": ["orders", "other"], "limit": 10, "ttl": 5.0, "worker": "w", "max_lease_expiries": 20}
    values |= {"begun": 4, "ranked": RANKED}
    given = {**values, "expired_error": EXPIRED_ERROR, "token": "t-"}
    given |= {
        "lanes": [1, 1],
        "names": ["orders", "orders"],
        "levels": [-1, 5],
        "seqs": [0, 7],
        "ends": [4, 9],
    }
    text = explained(postgres, plan, postgres_module._SQL[statement], given)
    assert "Seq Scan on conquiet_jobs" not in text
    if statement == "claim_onward":
        assert re.search(r"Index Cond: .*ROW\(priority, seq\) > ", text)
        assert "conquiet_jobs_leased" not in text
        return
    late = "conquiet_jobs_delayed" if statement == "claim_ready" else "conquiet_jobs_due"
    for index in ("conquiet_jobs_ready", late, "conquiet_jobs_leased"):
        assert index in text
    assert statement == "claim_ready" or re.search(r"retry_at <= ", text)


ANY = Listing(None, None, None, None, False, 10, None)
LISTINGS = {
    "oldest": (ANY, {"finished"}),
    "newest": (ANY._replace(newest_first=True), {"finished"}),
    "next page": (ANY._replace(after=7), {"finished"}),
    "failed": (ANY._replace(state=JobState.FAILED), {"finished"}),
    "queue": (ANY._replace(queue="orders", newest_first=True), {"finished"}),
    "task": (ANY._replace(task="mail", newest_first=True), {"task"}),
    "correlation id": (ANY._replace(correlation_id="c"), {"correlation"}),
}


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", LISTINGS)
def test_postgresql_reads_a_page_in_the_order_of_an_index(postgres: str, plan: str, name: str) -> None:
    listing, indexes = LISTINGS[name]
    text = explained(postgres, plan, *page_statement(postgres_module._SQL, listing))
    assert "Seq Scan" not in text
    for index in indexes:
        assert re.search(
            rf"Limit[^\n]*\n *->  Index (Only )?Scan (Backward )?using conquiet_jobs_{index} ", text
        ), text


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_counts_and_prunes_by_indexes(postgres: str, plan: str) -> None:
    text = explained(postgres, plan, postgres_module._SQL["stats"], {"queue": None})
    assert "Seq Scan on conquiet_jobs" not in text
    assert "conquiet_jobs_finished" not in text  # they have been counted
    text = explained(postgres, plan, postgres_module._SQL["backlog"], {"queue": "orders", "limit": 100})
    assert "Seq Scan" not in text
    assert "Sort" not in text
    assert re.findall(r"Index (?:Only )?Scan using conquiet_jobs_(\w+) ", text) == [
        "ready",
        "delayed",
        "leased",
    ]
    assert text.count("->  Limit") == 4, text  # of each part, and of all
    text = explained(postgres, plan, postgres_module._SQL["prune"], {"older_than": 10.0, "limit": 100})
    assert "Seq Scan" not in text
    assert "Index Scan using conquiet_jobs_ended" in text


def explained(dsn: str, plan: str, statement: str, values: dict[str, Any]) -> str:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"SET plan_cache_mode TO {plan}")
        rows = connection.execute(f"EXPLAIN {statement}", values, prepare=True).fetchall()
    return "\n".join(row[0] for row in rows)


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
        "begun": 4,
        "ranked": RANKED,
        "expired_error": EXPIRED_ERROR,
    }
    connection = sqlite3.connect(sqlite)
    if analyzed:
        connection.execute("ANALYZE")
    for statement in ("late", "claim_ready", "claim"):
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_module._SQL[statement]}", values).fetchall()
        used = [row[3] for row in plan if re.search(r"(SCAN|SEARCH) (conquiet_jobs|job|late)\b", row[3])]
        assert used
        for line in used:
            assert re.match(
                r"SEARCH (conquiet_jobs|job|late) USING (INTEGER PRIMARY KEY \(rowid=|(COVERING )?INDEX conquiet_jobs_"
                r"(ready \(queue=|delayed \(queue=\? AND retry_at<|leased \(queue=\? AND lease_expires_at<"
                r"|due \(queue=\?(\)| AND priority(>\?|=\? AND retry_at<))))",
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


@pytest.mark.clause("J-04")
def test_sqlite_works_as_little_for_many_that_are_due_together_as_for_some(tmp_path: Path) -> None:
    many, some = (work_of_claims(tmp_path / f"{due}.db", due) for due in (MANY, 2 * RANKED))
    assert many < 1.3 * some


def work_of_claims(path: Path, due: int = 0) -> int:
    """Steps of SQLite's virtual machine for a series of claims, in hundreds."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with open_store(f"sqlite:///{path}") as store:
        connection = store.operations.backend._connection  # type: ignore[attr-defined]
        store.enqueue_many("orders", [{}] * CLAIMS * 5)
        if due:
            store.enqueue_many("orders", [NewJob({}, delay=60.0)] * due)
            connection.execute("UPDATE conquiet_jobs SET retry_at = 1 WHERE waiting")
        connection.set_progress_handler(step, 100)
        for _ in range(CLAIMS):
            assert len(store.claim("orders", 5, lease_ttl=600.0)) == 5
        assert due or store.claim("orders") == []
        connection.set_progress_handler(None, 0)
    return steps


@pytest.mark.parametrize(
    ("listing", "used"),
    [
        (ANY, "SCAN conquiet_jobs"),  # in the order of the table, up to the limit
        (ANY._replace(after=7), "SEARCH conquiet_jobs USING INTEGER PRIMARY KEY (rowid>?)"),
        (
            ANY._replace(state=JobState.FAILED),
            "SEARCH conquiet_jobs USING INDEX conquiet_jobs_failed (state=?)",
        ),
        (ANY._replace(task="mail"), "SEARCH conquiet_jobs USING INDEX conquiet_jobs_task (task=?)"),
        (
            ANY._replace(correlation_id="c", newest_first=True),
            "SEARCH conquiet_jobs USING INDEX conquiet_jobs_correlation (correlation_id=?)",
        ),
    ],
)
def test_sqlite_reads_a_page_in_the_order_of_an_index(sqlite: Path, listing: Listing, used: str) -> None:
    connection = sqlite3.connect(sqlite)
    statement = f"EXPLAIN QUERY PLAN {sqlite_module.page_statement(listing)}"
    assert [row[3] for row in connection.execute(statement, listing._asdict())] == [used]  # and no sorting
    for name in ("stats", "backlog", "prune"):
        values = {"queue": None, "now": 1e9, "older_than": 1.0, "limit": 10}
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sqlite_module._SQL[name]}", values).fetchall()
        for line in (row[3] for row in plan if "conquiet_jobs" in row[3]):
            assert re.search("USING (COVERING )?INDEX conquiet_jobs_|USING INTEGER PRIMARY KEY", line), line
    connection.close()
