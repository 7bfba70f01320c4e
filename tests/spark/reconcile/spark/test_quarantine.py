"""Inputs: wrong columns are refused, wrong rows are quarantined, and the rest goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile import Status
from conquiet.reconcile.spark.batch import reconcile_batch
from conquiet.reconcile.spark.inputs import read_metrics, read_reports
from tests.spark.reconcile.spark.cases import AS_OF, METRICS, REPORTS, Row

pytestmark = pytest.mark.clause("P-09")

GOOD: Row = {
    "report_id": 1,
    "affiliate_id": "ann",
    "platform": "photos",
    "post_id": "p1",
    "claimed_views": 1000,
    "claimed_clicks": 40,
    "claimed_conversions": 3,
    "submitted_at": "2026-01-31T10:00:00.000001+01:00",
}
SEEN: Row = {
    "platform": "photos",
    "post_id": "p1",
    "views": 1000,
    "clicks": 40,
    "conversions": 3,
    "observed_at": "2026-01-31T11:00:00Z",
}
BAD_LINES: tuple[tuple[str, str], ...] = (
    ("garbage", "not a JSON object"),
    ("[1]", "not a JSON object"),
    ("", "not a JSON object"),
    (json.dumps(GOOD)[:-9], "not a JSON object"),
    (json.dumps(GOOD | {"claimed_views": "12"}), "claimed_views must be a whole number from 0 to"),
    (json.dumps(GOOD | {"claimed_views": 1.5}), "claimed_views must be a whole number from 0 to"),
    (json.dumps(GOOD | {"claimed_clicks": 2**63}), "claimed_clicks must be a whole number from 0 to"),
    (json.dumps(GOOD | {"claimed_clicks": -1}), "claimed_clicks must be a whole number from 0 to"),
    (json.dumps(GOOD | {"claimed_conversions": None}), "claimed_conversions is missing"),
    (json.dumps(GOOD | {"report_id": "one"}), "report_id must be a whole number, not one"),
    (json.dumps(GOOD | {"affiliate_id": " "}), "affiliate_id must be a text that is not empty"),
    (json.dumps(GOOD | {"attempt": 0}), "attempt must be a whole number from 1 to"),
    (json.dumps(GOOD | {"submitted_at": "2026-01-31T10:00:00"}), "submitted_at must be a time with a zone"),
    (json.dumps(GOOD | {"submitted_at": "2026-02-31T10:00:00Z"}), "submitted_at must be a time with a zone"),
    (json.dumps(GOOD | {"submitted_at": 17}), "submitted_at must be a time with a zone"),
    (
        json.dumps(GOOD | {"submitted_at": "2026-02-01T10:00:00Z"}),
        "submitted_at is 2026-02-01 10:00:00, after 2026-01-31",
    ),
)


def parquet(path: Path, rows: list[Row], schema: pa.Schema) -> str:
    timed = [
        row
        | {
            name: datetime.fromisoformat(row[name])
            for name in row
            if name.endswith("_at") and isinstance(row[name], str)
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(timed, schema), path)
    return str(path)


def test_json_lines_that_are_no_reports_are_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    good = [json.dumps(GOOD), json.dumps(GOOD | {"report_id": 2, "more": [1], "attempt": None})]
    lines = [good[0], *(line for line, _ in BAD_LINES), good[1]]
    (tmp_path / "reports.jsonl").write_text("\n".join(lines) + "\n")
    metrics = parquet(tmp_path / "metrics.parquet", [SEEN], METRICS)
    reports = read_reports(spark, str(tmp_path / "reports.jsonl"), "json")
    outputs = reconcile_batch(reports, read_metrics(spark, metrics), as_of=AS_OF)
    assert sorted((row.report_id, row.attempt, row.status) for row in outputs.verdicts.collect()) == [
        (1, 1, "MATCHED"),
        (2, 1, "MATCHED"),
    ]
    aside = outputs.quarantine.collect()
    assert sorted(row.raw for row in aside) == sorted(line for line, _ in BAD_LINES)
    for row in aside:
        assert any(line == row.raw and row.reason.startswith(reason) for line, reason in BAD_LINES), row
        assert row.source.endswith("/reports.jsonl")
        assert row.position.startswith("bytes 0-")


def test_csv_lines_that_are_no_metrics_are_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        "post_id,platform,views,clicks,conversions,observed_at,remark",
        "p1,photos,1000,40,3,2026-01-31T11:00:00Z,good",
        "p1,photos,,,3,2027-01-31T11:00:00Z,still to come",
        "p2,photos,many,,,2026-01-31T11:00:00Z,",
        "p3,photos,-1,,,2026-01-31T11:00:00Z,",
        "p4,photos",
        ",photos,1,1,1,2026-01-31T11:00:00Z,",
        "p5,photos,1,1,1,yesterday,",
    ]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    reports = parquet(tmp_path / "reports.parquet", [GOOD | {"attempt": 1}], REPORTS)
    metrics = read_metrics(spark, str(tmp_path / "metrics.csv"), "csv")
    outputs = reconcile_batch(read_reports(spark, reports), metrics, as_of=AS_OF)
    assert [row.status for row in outputs.verdicts.collect()] == ["MATCHED"]
    aside = outputs.quarantine.collect()
    assert sorted(row.reason[:25] for row in aside) == [
        "not a line with as many f",
        "observed_at must be a tim",
        "post_id is missing",
        "views must be a whole num",
        "views must be a whole num",
    ]
    assert any('"views":"many"' in row.raw for row in aside)
    assert all(row.source.endswith("/metrics.csv") for row in aside)


def test_rows_of_parquet_are_found_again(spark: SparkSession, tmp_path: Path) -> None:
    rows = [GOOD | {"report_id": number, "claimed_views": -1 if number == 3 else 5} for number in range(6)]
    reports = parquet(tmp_path / "reports.parquet", rows, REPORTS)
    metrics = parquet(tmp_path / "metrics.parquet", [SEEN], METRICS)
    outputs = reconcile_batch(read_reports(spark, reports), read_metrics(spark, metrics), as_of=AS_OF)
    (row,) = outputs.quarantine.collect()
    assert row.position == "row 3"
    assert json.loads(row.raw)["report_id"] == 3
    assert outputs.verdicts.count() == 5


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"claimed_views": None}, "reports have no column claimed_views; they have: report_id, "),
        (
            {"claimed_views": "cast(1 AS string)"},
            "column claimed_views of reports must be bigint, not string",
        ),
        ({"claimed_views": "1.5"}, "column claimed_views of reports must be bigint, not decimal"),
        (
            {"submitted_at": "timestamp_ntz'2026-01-01 00:00:00'"},
            "submitted_at of reports must be timestamp, not timestamp_ntz",
        ),
        ({"platform": "7"}, "column platform of reports must be string, not int"),
    ],
)
def test_columns_that_are_wrong_are_named(
    spark: SparkSession, expression: dict[str, Any], message: str
) -> None:
    good = {name: f"cast(1 AS bigint) AS {name}" for name in REPORTS.names}
    good |= {name: f"'x' AS {name}" for name in ("affiliate_id", "platform", "post_id")}
    good["submitted_at"] = "timestamp'2026-01-01 00:00:00Z' AS submitted_at"
    for name, text in expression.items():
        good[name] = f"{text} AS {name}"
        if text is None:
            del good[name]
    reports = spark.range(1).selectExpr(*good.values())
    metrics = spark.range(0).selectExpr(
        "'p' AS platform",
        "'x' AS post_id",
        "id AS views",
        "id AS clicks",
        "id AS conversions",
        "now() AS observed_at",
    )
    with pytest.raises(ReconcileConfigError, match=message):
        reconcile_batch(reports, metrics)


def test_columns_of_metrics_are_checked_too(spark: SparkSession, tmp_path: Path) -> None:
    reports = read_reports(spark, parquet(tmp_path / "r.parquet", [GOOD], REPORTS))
    metrics = read_metrics(spark, parquet(tmp_path / "m.parquet", [SEEN], METRICS))
    with pytest.raises(ReconcileConfigError, match="metrics have no column views; they have: platform, "):
        reconcile_batch(reports, metrics.drop("views"))


def test_a_format_or_a_time_that_does_not_exist_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ReconcileConfigError, match="use parquet, json or csv"):
        read_reports(spark, "nowhere", "xml")
    with pytest.raises(ReconcileConfigError, match="as_of needs a zone"):
        reconcile_batch(spark.range(1), spark.range(1), as_of=datetime(2026, 1, 1))


@pytest.mark.clause("P-07")
def test_what_comes_twice_counts_once_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    """Of several reports with one id the earliest counts; of observations of one moment the largest values."""
    report = GOOD | {"attempt": 1}
    reports = [report, report | {"claimed_views": 9, "submitted_at": "2026-01-31T11:00:00Z"}, report]
    seen = [SEEN | {"views": None}, SEEN | {"clicks": None}, SEEN | {"views": 1, "clicks": 1}]
    for number, order in enumerate((1, -1)):
        outputs = reconcile_batch(
            read_reports(spark, parquet(tmp_path / f"r{number}.parquet", reports[::order], REPORTS)),
            read_metrics(spark, parquet(tmp_path / f"m{number}.parquet", seen[::order], METRICS)),
            as_of=AS_OF,
        )
        assert [(row.status, row.max_diff) for row in outputs.verdicts.collect()] == [("MATCHED", 0.0)]
        assert outputs.trust.count() == 1


def test_retries_are_reports_again(spark: SparkSession, tmp_path: Path) -> None:
    reports = read_reports(spark, parquet(tmp_path / "r.parquet", [GOOD | {"attempt": 3}], REPORTS))
    nothing = read_metrics(spark, parquet(tmp_path / "m.parquet", [], METRICS))
    first = reconcile_batch(reports, nothing, as_of=AS_OF)
    (retry,) = first.retries.collect()
    assert (retry.attempt, retry.scheduled_retry_at.replace(tzinfo=UTC)) == (4, AS_OF + timedelta(minutes=90))
    assert first.alerts.count() == 0
    later = AS_OF
    for attempt in (4, 5):
        later += timedelta(hours=2)
        (row,) = (again := reconcile_batch(first.retries, nothing, as_of=later)).verdicts.collect()
        assert (row.attempt, row.status) == (attempt, Status.MISSING_PLATFORM_DATA)
        first = again
    assert first.retries.count() == 0  # the fifth was the last
    (alert,) = first.alerts.collect()
    assert (alert.attempt, alert.kind, alert.severity) == (5, "system_health", "medium")
