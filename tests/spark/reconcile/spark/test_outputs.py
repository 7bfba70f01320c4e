"""Outputs of a batch in files and databases: the same rows as in the frames, exactly once, whatever is repeated."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from conquiet.errors import ReconcileConfigError, StagingLostError, StoreUnavailableError
from conquiet.reconcile import DEFAULT_RULES
from conquiet.reconcile.report import read_outputs
from conquiet.reconcile.spark import read_reports, save_outputs
from conquiet.reconcile.spark.batch import JudgedOutputs, ReconcileOutputs, reconcile_batch
from conquiet.reconcile.spark.outputs.databases import OutputDatabase, new_run, output_database
from conquiet.reconcile.spark.outputs.tables import TABLES, prepared, staging_name
from tests.spark.reconcile.spark.cases import AS_OF, METRICS, REPORTS, Cases, Row, draw, verdicts

pytestmark = pytest.mark.clause("P-09")

Query = Callable[[str], list[tuple[Any, ...]]]
NAMES = [table.name for table in TABLES]
LATER = AS_OF + timedelta(hours=1)


class Database:
    def __init__(self, dsn: str, query: Query) -> None:
        self.dsn, self.query = dsn, query

    def table(self, name: str) -> list[tuple[Any, ...]]:
        (table,) = (table for table in TABLES if table.name == name)
        return sorted(self.query(f"SELECT {', '.join(table.columns)} FROM {table.full_name}"), key=repr)

    def counts(self) -> dict[str, int]:
        return {name: len(self.table(name)) for name in NAMES}

    def staging(self) -> list[str]:
        known = "pg_tables" if self.dsn.startswith("postgres") else "sqlite_master"
        column = "tablename" if self.dsn.startswith("postgres") else "name"
        names = [name for (name,) in self.query(f"SELECT {column} FROM {known}")]
        return [name for name in names if name.startswith("conquiet_staged_")]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        path = tmp_path / "outputs of today.db"

        def on_sqlite(statement: str) -> list[tuple[Any, ...]]:
            connection = sqlite3.connect(path)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.commit()
                connection.close()

        return Database(f"sqlite:///{str(path).replace(' ', '%20')}", on_sqlite)
    dsn: str = request.getfixturevalue("postgres_dsn")

    def on_postgres(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(dsn) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return Database(dsn, on_postgres)


def reconciled(spark: SparkSession, cases: Cases, as_of: datetime = AS_OF) -> JudgedOutputs:
    reports, metrics = (
        spark.createDataFrame(pa.Table.from_pylist(rows, schema))
        for rows, schema in ((cases.reports, REPORTS), (cases.metrics, METRICS))
    )
    outputs = reconcile_batch(reports, metrics, as_of=as_of)
    assert isinstance(outputs, JudgedOutputs)
    return outputs


def report(number: int, **changes: Any) -> Row:
    return {
        "report_id": number,
        "affiliate_id": "ann\t\\N\n'%s",
        "platform": "photos",
        "post_id": f"p{number}",
        "claimed_views": 1500,
        "claimed_clicks": 40,
        "claimed_conversions": 3,
        "submitted_at": AS_OF - timedelta(hours=2),
        "attempt": 1,
    } | changes


def seen(number: int, **changes: Any) -> Row:
    return {
        "platform": "photos",
        "post_id": f"p{number}",
        "views": 1000,
        "clicks": 40,
        "conversions": 3,
        "observed_at": AS_OF - timedelta(hours=1),
    } | changes


def test_tables_hold_what_the_frames_hold(spark: SparkSession, database: Database) -> None:
    cases = draw(5, 3_000)
    outputs = reconciled(spark, cases)
    save_outputs(outputs, database.dsn)
    assert not outputs.rows.is_cached
    is_text = database.dsn.startswith("sqlite")  # SQLite has no times
    expected = [
        tuple(
            _time(value, is_text) if isinstance(value, datetime) else value
            for value in (
                *(
                    row[name]
                    for name in ("report_id", "attempt", "affiliate_id", "platform", "status", "level")
                ),
                row["max_diff"],
                row["confidence"],
                row["trust_event"],
                row["trust_delta"],
                ",".join(row["missing_fields"]),
                row["scheduled_retry_at"],
                AS_OF,
            )
        )
        for row, _ in verdicts(cases, DEFAULT_RULES)
    ]
    assert database.table("verdicts") == sorted(expected, key=repr)
    for table in TABLES[1:4]:
        frame: list[Row] = getattr(outputs, table.name).toArrow().to_pylist()
        rows = [
            tuple(
                _time(row[name], is_text) if isinstance(row[name], datetime) else row[name]
                for name in table.columns
            )
            for row in frame
        ]
        assert database.table(table.name) == sorted(rows, key=repr)
        assert rows
    bad = database.table("quarantine")
    assert len(bad) == len(cases.refused)
    assert len({row[0] for row in bad}) == len(bad)
    assert not database.staging()


def _time(moment: datetime, is_text: bool) -> datetime | str:
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}" if is_text else moment


def test_what_was_judged_before_is_left_out_with_all_that_follows(
    spark: SparkSession, database: Database
) -> None:
    """Report 1 had no metrics at first, and has them now; 3 is new. The first verdict on an attempt stands."""
    first = Cases(reports=[report(1), report(2), report(4, claimed_views=-1)], metrics=[seen(2)])
    save_outputs(reconciled(spark, first), database.dsn)
    before = {name: database.table(name) for name in NAMES}
    assert database.counts() == {"verdicts": 2, "trust": 1, "alerts": 1, "retries": 1, "quarantine": 1}

    now = Cases(
        reports=[*first.reports, report(3), report(5), report(1, attempt=2)],
        metrics=[seen(1), seen(2, views=None), seen(3)],
    )
    save_outputs(reconciled(spark, now, LATER), database.dsn)
    after = {name: database.table(name) for name in NAMES}
    assert [row[:2] for row in after["verdicts"]] == [(1, 1), (1, 2), (2, 1), (3, 1), (5, 1)]
    assert all(set(before[name]) <= set(after[name]) for name in NAMES)
    assert [row[:2] for row in after["trust"]] == [(1, 2), (2, 1), (3, 1)]  # not (1, 1): it had none
    # Report 1 overclaims in both attempts, but the first was judged before, without an alert.
    assert [(row[0], row[2]) for row in after["alerts"]] == [(1, 2), (2, 1), (3, 1)]
    assert [row[:2] for row in after["retries"]] == [(1, 2), (5, 2)]  # not (2, 2): it was complete
    assert after["quarantine"] == before["quarantine"]


def test_a_failure_leaves_nothing(spark: SparkSession, database: Database) -> None:
    outputs = reconciled(spark, Cases(reports=[report(1)], metrics=[seen(1)]))
    broken = outputs._replace(quarantine=outputs.verdicts.select(*map(_exploding, QUARANTINE)))
    broken.rows, broken.as_of = outputs.rows, outputs.as_of
    with pytest.raises(Exception, match="boom"):
        save_outputs(broken, database.dsn)
    assert set(database.counts().values()) == {0}
    assert not database.staging()
    assert not outputs.rows.is_cached


QUARANTINE = ("source", "position", "raw", "reason")


def _exploding(name: str) -> Column:
    return f.raise_error(f.concat("status", f.lit(" boom"))).cast("string").alias(name)


def test_lines_that_are_the_same_are_all_there(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    lines = ["nonsense", "nonsense", 'nonsense \0 "\\N\t', "nonsense"]
    (tmp_path / "reports.jsonl").write_text("\n".join(lines))
    reports = read_reports(spark, str(tmp_path / "reports.jsonl"), "json")
    outputs = reconcile_batch(reports, spark.createDataFrame(pa.Table.from_pylist([], METRICS)), as_of=AS_OF)
    save_outputs(outputs, database.dsn)
    found = database.table("quarantine")
    assert sorted(row[3] for row in found) == sorted(line.replace("\0", "\ufffd") for line in lines)
    again = prepared(outputs.quarantine, TABLES[-1], AS_OF).select("id").collect()
    assert sorted(row.id for row in again) == sorted(row[0] for row in found)  # so a replay adds none


def staged(database: OutputDatabase, run: str, rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, int]:
    """Stage rows as a task does. A row holds the first columns of its table, and the rest is null."""
    for table in TABLES:
        fields = [(name, ARROW[kind]) for name, kind in table.columns.items()]
        nothing = dict.fromkeys(table.columns)
        dicts = [nothing | dict(zip(table.columns, row, strict=False)) for row in rows.get(table.name, [])]
        database.stage(iter([pa.RecordBatch.from_pylist(dicts, pa.schema(fields))]), table, run)
    return {name: len(rows.get(name, [])) for name in NAMES}


ARROW = {"bigint": pa.int64(), "double": pa.float64(), "text": pa.string(), "time": pa.timestamp("us", "UTC")}


def test_a_task_that_is_repeated_after_its_rows_were_in_adds_none(database: Database) -> None:
    outputs, run = output_database(database.dsn), new_run("one")
    outputs.prepare(run)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "verdicts": [(1, 1), (2, 1), (1, 2)],
        "trust": [(1, 1)],
        "alerts": [(1, "BAD", 2, "of 2"), (1, "BAD", 1, "of 1")],
    }
    staged(outputs, run, rows)
    outputs.publish(run, staged(outputs, run, rows))
    assert database.counts() == {"verdicts": 3, "trust": 1, "alerts": 1, "retries": 0, "quarantine": 0}
    assert database.table("alerts")[0][:4] == (1, "BAD", 1, "of 1")


def test_staged_rows_that_are_gone_are_missed(database: Database) -> None:
    outputs, run = output_database(database.dsn), new_run("one")
    outputs.prepare(run)
    rows = staged(outputs, run, {"verdicts": [(1, 1), (2, 1)], "trust": [(1, 1)]})
    database.query(f"DELETE FROM {staging_name(TABLES[1], run)}")
    with pytest.raises(StagingLostError, match="0 of 1 staged rows of trust exist; nothing was saved"):
        outputs.publish(run, rows)
    assert set(database.counts().values()) == {0}


def test_of_two_runs_with_the_same_attempts_one_enters_them(database: Database) -> None:
    outputs = output_database(database.dsn)
    runs = [new_run(name) for name in ("one", "two")]
    failures: list[BaseException] = []

    def publish(run: str, rows: dict[str, int]) -> None:
        try:
            outputs.publish(run, rows)
        except BaseException as error:
            failures.append(error)

    threads = []
    for run in runs:
        outputs.prepare(run)
        attempts = [(number, 1) for number in range(5_000)]
        # One run leads to trust and the other to retries: for each attempt only one of them may be there.
        follows = {"trust": attempts} if run == runs[0] else {"retries": [(n, 2) for n, _ in attempts]}
        counts = staged(outputs, run, {"verdicts": attempts, **follows})
        threads.append(threading.Thread(target=publish, args=(run, counts)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    counts = database.counts()
    assert counts["verdicts"] == counts["trust"] + counts["retries"] == 5_000
    assert 0 in (counts["trust"], counts["retries"])


def test_what_a_killed_driver_has_left_is_removed_a_day_later(database: Database) -> None:
    outputs = output_database(database.dsn)
    long_ago, just_now = f"{int(time.time()) - 86_500}_one", new_run("two")
    outputs.prepare(long_ago)
    outputs.prepare(just_now)
    assert sorted(database.staging()) == sorted(staging_name(table, just_now) for table in TABLES)
    outputs.discard(just_now)
    outputs.discard(just_now)
    assert not database.staging()


def test_files_are_parted_by_day_and_a_batch_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    cases = draw(6, 500)
    for folder in (f"{tmp_path}/out", f"{tmp_path}/out/"):
        save_outputs(reconciled(spark, cases), folder)
    day = tmp_path / "out" / "verdicts" / "day=2026-01-31"
    assert [batch.name for batch in day.iterdir()] == ["batch=20260131T120000.123457Z"]
    outputs = read_outputs(spark, str(tmp_path / "out"))
    expected = reconciled(spark, cases)
    for name, frame in outputs._asdict().items():
        rows = frame.drop("day", "batch").toArrow().to_pylist()
        assert sorted(rows, key=repr) == sorted(getattr(expected, name).toArrow().to_pylist(), key=repr)


def test_other_outputs_go_to_files_if_it_is_known_when_they_were_judged(
    spark: SparkSession, tmp_path: Path
) -> None:
    plain = ReconcileOutputs(*reconciled(spark, Cases(reports=[report(1)])))
    with pytest.raises(
        ReconcileConfigError, match="the time at which these reports were judged is not known"
    ):
        save_outputs(plain, str(tmp_path / "out"))
    save_outputs(plain, str(tmp_path / "out"), as_of=AS_OF)
    assert read_outputs(spark, str(tmp_path / "out")).verdicts.count() == 1
    with pytest.raises(ReconcileConfigError, match="only outputs as reconcile_batch returned them"):
        save_outputs(plain, f"sqlite:///{tmp_path}/outputs.db", as_of=AS_OF)


def test_a_database_that_does_not_answer_is_told_without_its_password(spark: SparkSession) -> None:
    outputs = reconciled(spark, Cases(reports=[report(1)]))
    with pytest.raises(StoreUnavailableError, match="prepare the tables on postgresql://") as refused:
        save_outputs(outputs, "postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(refused.value)
    with pytest.raises(ReconcileConfigError, match=r"sqlite:///file\.db, not to sqlite://"):
        save_outputs(outputs, "sqlite://")
