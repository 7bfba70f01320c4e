"""The set of raised alerts: when it is merged, when a kill interrupts a merge, and when time passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from conquiet.reconcile.spark.alert_memory import AlertMemory

pytestmark = pytest.mark.clause("P-08")

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def alerts(spark: SparkSession, *reports: int) -> DataFrame:
    rows = [(number, "DISCREPANCY_HIGH", 1) for number in reports]
    return spark.createDataFrame(rows, "report_id BIGINT, status STRING, attempt BIGINT")


def unraised(memory: AlertMemory, candidates: DataFrame, number: int, as_of: datetime = NOW) -> list[int]:
    found = memory.unraised(candidates, number, as_of, at_most=10)
    return sorted(row.report_id for row in found.collect())


def runs(memory: AlertMemory) -> list[str]:
    return sorted(folder.name for folder in Path(memory.folder).iterdir())


def test_merged_runs_hold_what_they_held(spark: SparkSession, tmp_path: Path) -> None:
    memory = AlertMemory(str(tmp_path / "alerted"), "7 days", many=2)
    everything = alerts(spark, *range(8))
    for number in range(7):
        assert unraised(memory, everything, number) == list(range(number, 8))
        memory.add(alerts(spark, number), number, NOW)
    assert runs(memory) == ["rank=0-6", "rank=1-5", "rank=2-3"]
    assert unraised(memory, everything, 7) == [7]
    assert unraised(memory, everything, 4) == [
        4,
        5,
        6,
        7,
    ]  # a micro-batch does not see itself, nor later ones


def test_a_merge_cut_short_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    memory = AlertMemory(str(tmp_path / "alerted"), "7 days", many=2)
    memory.add(alerts(spark, 0), 0, NOW)
    half_written = Path(memory.folder, "rank=1-1")
    half_written.mkdir()
    (half_written / "part-0.parquet").write_bytes(b"not yet")
    assert unraised(memory, alerts(spark, 0, 1), 1) == [1]
    memory.add(alerts(spark, 1), 1, NOW)
    assert runs(memory) == ["rank=1-1"]
    assert unraised(memory, alerts(spark, 0, 1, 2), 2) == [2]


def test_what_is_older_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    memory = AlertMemory(str(tmp_path / "alerted"), "7 days", many=2)
    memory.add(alerts(spark, 0), 0, NOW)
    assert unraised(memory, alerts(spark, 0), 1, NOW + timedelta(days=7)) == []
    later = NOW + timedelta(days=7, seconds=1)
    assert unraised(memory, alerts(spark, 0), 1, later) == [0]
    memory.add(alerts(spark, 1), 1, later)
    assert spark.read.parquet(f"{memory.folder}/rank=1-1").count() == 1
