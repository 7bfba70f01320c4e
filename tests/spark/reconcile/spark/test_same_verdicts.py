"""The Spark path and the per-job path produce the same verdicts, bit by bit."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from conquiet.reconcile import DEFAULT_RULES, AlertRule, Level, RetryRule, Rules, Status, TrustRules
from conquiet.reconcile.spark.batch import reconcile_batch
from conquiet.reconcile.spark.inputs import read_metrics, read_reports
from tests.campaign import campaign_size
from tests.chance import Chance
from tests.spark.reconcile.spark.cases import AS_OF, METRICS, REPORTS, Row, draw, verdicts

OTHER_RULES = dataclasses.replace(
    DEFAULT_RULES,
    growth_per_hour=0.0371,
    growth_cap_hours=7.3,
    matched_up_to=0.013,
    overclaimed_from=0.31,
    critical_from=0.62,
    trust=TrustRules(perfect_match=7, overclaim=-23),
    retries=(
        RetryRule(
            Status.MISSING_PLATFORM_DATA, 0.1000005, growing=True, max_attempts=3, within_seconds=3600.25
        ),
        RetryRule(Status.DISCREPANCY_HIGH, 60.5, growing=False, max_attempts=1000),
    ),
    alerts=(
        AlertRule(Status.DISCREPANCY_LOW, "small", "low", level=Level.LOW),
        AlertRule(Status.MISSING_PLATFORM_DATA, "gap", "low", only_without_retry=True),
        AlertRule(Status.MATCHED, "none", "none", level=Level.HIGH),
    ),
)


@pytest.mark.clause("P-07", "P-09")
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rules", "size"), [(DEFAULT_RULES, 200_000), (OTHER_RULES, 20_000)], ids=["default", "other"]
)
def test_the_spark_path_equals_the_per_job_path(
    spark: SparkSession,
    tmp_path: Path,
    chance: Chance,
    capsys: pytest.CaptureFixture[str],
    rules: Rules,
    size: int,
) -> None:
    with capsys.disabled():
        print(f"\nSpark path against per-job path, {chance}")
    cases = draw(chance.seed_used, campaign_size(size))
    pq.write_table(
        pa.Table.from_pylist(cases.reports, REPORTS), tmp_path / "reports.parquet", row_group_size=5_000
    )
    pq.write_table(pa.Table.from_pylist(cases.metrics, METRICS), tmp_path / "metrics.parquet")
    outputs = reconcile_batch(
        read_reports(spark, str(tmp_path / "reports.parquet")),
        read_metrics(spark, str(tmp_path / "metrics.parquet")),
        rules,
        AS_OF,
    )
    expected = list(verdicts(cases, rules))
    assert set(Status) <= {row["status"] for row, _ in expected}

    found = {_key(row): row for row in rows_of(outputs.verdicts)}
    assert outputs.verdicts.count() == len(found) == len(expected)
    for row, _ in expected:
        assert _bits(found[_key(row)]) == _bits(row), row

    trust = {
        _key(row): (row["affiliate_id"], row["event"], row["delta_hundredths"])
        for row in rows_of(outputs.trust)
    }
    assert trust == {
        _key(row): (row["affiliate_id"], row["trust_event"], row["trust_delta"])
        for row, _ in expected
        if row["trust_event"]
    }
    alerts: dict[tuple[int, str], tuple[int, str, str]] = {}
    for row, alert in sorted(expected, key=lambda one: _key(one[0])):
        if alert:
            alerts.setdefault((row["report_id"], row["status"]), (row["attempt"], *alert.values()))
    raised = rows_of(outputs.alerts)
    assert len(raised) == len(alerts)
    assert alerts == {
        (row["report_id"], row["status"]): (row["attempt"], row["kind"], row["severity"]) for row in raised
    }
    assert {_key(row): row for row in rows_of(outputs.retries)} == {
        (row["report_id"], row["attempt"] + 1): cases.good[_key(row)]
        | {"attempt": row["attempt"] + 1, "scheduled_retry_at": row["scheduled_retry_at"]}
        for row, _ in expected
        if row["scheduled_retry_at"]
    }
    aside = rows_of(outputs.quarantine)
    assert sorted(row["reason"].split()[0] for row in aside) == sorted(cases.refused)
    assert all(row["source"].endswith(".parquet") and row["position"].startswith("row ") for row in aside)


def rows_of(frame: DataFrame) -> list[Row]:
    rows: list[Row] = frame.toArrow().to_pylist()
    return rows


def _key(row: Row) -> tuple[int, int]:
    return row["report_id"], row["attempt"]


def _bits(row: Row) -> dict[str, Any]:
    """Doubles as their eight bytes: -0.0 and 0.0 differ."""
    return {
        name: struct.pack("<d", value) if isinstance(value, float) else value for name, value in row.items()
    }
