"""Reconciliation shows verdicts, quarantine and lag on the terminal and in the metrics, as they are written."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from pyspark.sql import SparkSession
from rich.console import Console

from conquiet.reconcile.spark.batch import ReconcileOutputs, reconcile_batch
from conquiet.reconcile.spark.batch_progress import shown
from conquiet.reconcile.spark.inputs import read_metrics, read_reports
from conquiet.reconcile.spark.outputs.destination import save_outputs
from conquiet.spark.progress import ProgressListener, QueryState, Tally, View
from tests.spark.progress.test_listener import metric, until_said
from tests.spark.reconcile.spark.cases import AS_OF
from tests.spark.reconcile.spark.test_stream import Pipeline, report


def verdict_metrics(query: str) -> dict[str, float]:
    return {
        sample.labels["status"]: sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "conquiet_pipeline_verdicts_total" and sample.labels["query"] == query
    }


@pytest.mark.clause("P-09", "P-11")
def test_a_stream_tells_and_counts_what_it_has_written(
    spark: SparkSession, one_redis: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, one_redis, tmp_path)
    pipeline.queue.enqueue_many([report(number) for number in range(30)])
    pipeline.queue.enqueue_many([report(7), {"no": "report"}, report(31, claimed_views=-1), {}])
    screen = io.StringIO()
    listener = ProgressListener(spark, View(Console(file=screen, width=300, highlight=False)))
    spark.streams.addListener(listener)
    try:
        pipeline.run("told stream")
        lines = until_said(screen, "told stream ended after 34 rows")
    finally:
        listener.stop()
    tables = pipeline.tables()
    statuses = Counter(row["status"] for row in tables["verdicts"])
    assert verdict_metrics("told stream") == statuses
    for name, table in (
        ("alerts_total", "alerts"),
        ("retries_total", "retries"),
        ("quarantined_total", "quarantine"),
    ):
        assert metric(name, "told stream") == len(tables[table]) > 0
    assert metric("duplicates_total", "told stream") == 1
    assert metric("state_rows", "told stream") == 33
    batches = [line for line in lines if " batch " in line and " 0 rows " not in line]
    assert len(batches) == 2
    for status, count in statuses.items():
        assert f", {status} {count}, " in batches[-1]
    for told in (f"{len(tables['alerts'])} alerts", "3 in quarantine", "1 duplicates", " s behind"):
        assert told in batches[-1]


@pytest.mark.clause("P-11")
def test_a_batch_tells_and_counts_what_it_has_written(spark: SparkSession, tmp_path: Path) -> None:
    outputs = some_outputs(spark, tmp_path)
    screen = io.StringIO()
    with shown(outputs, "told batch", View(Console(file=screen, width=300))) as tables:
        save_outputs(tables, str(tmp_path))
    statuses = Counter(row.status for row in spark.read.parquet(str(tmp_path / "verdicts")).collect())
    assert statuses.total() == 20
    assert verdict_metrics("told batch") == statuses
    for name, table in (
        ("alerts_total", "alerts"),
        ("retries_total", "retries"),
        ("quarantined_total", "quarantine"),
    ):
        assert metric(name, "told batch") == spark.read.parquet(str(tmp_path / table)).count() > 0
    assert metric("rows_total", "told batch") >= 21 + 10
    said = screen.getvalue()
    assert said.startswith("told batch ")
    assert " tasks: " in said
    assert all(f", {status} {count}" in said for status, count in statuses.items())
    assert ", 1 in quarantine" in said


@pytest.mark.clause("P-11")
def test_a_terminal_shows_a_batch_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    outputs = some_outputs(spark, tmp_path)
    screen = io.StringIO()
    view = View(Console(file=screen, width=120, force_terminal=True, force_interactive=True))
    with shown(outputs, "live batch", view) as tables:
        tables.verdicts.collect()
        until_said(screen, "live batch")
        assert " tasks" in screen.getvalue()


def test_what_fails_in_the_block_is_not_hidden(spark: SparkSession, tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="the disk is full"),
        shown(some_outputs(spark, tmp_path), "failed", None),
    ):
        raise RuntimeError("the disk is full")


def some_outputs(spark: SparkSession, folder: Path) -> ReconcileOutputs:
    lines = [json.dumps(report(number)) for number in range(20)]
    (folder / "reports.jsonl").write_text("\n".join([*lines, "no report"]))
    rows = [f"photos,p{number},1000,40,3,2026-01-31T11:00:00Z" for number in range(10)]
    header = "platform,post_id,views,clicks,conversions,observed_at"
    (folder / "metrics.csv").write_text("\n".join([header, *rows]))
    return reconcile_batch(
        read_reports(spark, str(folder / "reports.jsonl"), "json"),
        read_metrics(spark, str(folder / "metrics.csv"), "csv"),
        as_of=AS_OF,
    )


class TestView:
    """Without Spark."""

    def test_a_terminal_shows_one_table_of_all_queries(self) -> None:
        screen = io.StringIO()
        view = View(Console(file=screen, width=120, force_terminal=True, force_interactive=True))
        verdicts = Tally("verdicts", "by status", label="status", heading="verdicts")
        late = Tally("late", "late rows", words="late", heading="late", is_warning=True)
        view.show(QueryState("one", "batch 3", total=1_234, lag=0.5, counts={late: Counter({"": 7})}))
        view.show(QueryState("two", "batch 4", counts={verdicts: Counter(MATCHED=1_000)}, lost=3))
        drawn = screen.getvalue().rpartition("query")[2]
        for text in ("one", "1,234", "0.5 s", "7", "two", "verdicts", "MATCHED 1,000", "late", "3 lost"):
            assert text in drawn
        view.close("one")
        assert "one" not in screen.getvalue().rpartition("query")[2]
        view.close("two")
        view.say("two", "ended")
        assert "ended" in screen.getvalue().rpartition("two")[2]

    def test_elsewhere_it_is_a_line_at_a_time(self) -> None:
        screen = io.StringIO()
        view = View(Console(file=screen, width=300))
        for batch in range(3):
            view.show(
                QueryState("[one]", f"batch {batch}", rows=10, seconds=0.5, rate=20, total=10, lag=7_300)
            )
        view.close("[one]")
        lines = screen.getvalue().splitlines()
        assert lines[2] == "[one] batch 2: 10 rows in 0.5 s, 20 a second, 10 in all, 2 h behind"
        assert len(lines) == 3

    def test_a_line_shows_counts_in_their_order(self) -> None:
        verdicts = Tally("verdicts", "by status", label="status")
        alerts, retries = Tally("alerts", "alerts", words="alerts"), Tally("retries", "", words="retries")
        late = Tally("late", "late rows", words="late", is_warning=True)
        counts = {
            verdicts: Counter(LOW=2, MATCHED=1_000),
            late: Counter({"": 7}),
            alerts: Counter({"": 3}),
            retries: Counter({"": 0}),
        }
        state = QueryState("one", "batch 0", duplicates=4, lost=5, counts=counts)
        shown = state.line().partition("in all, ")[2]
        assert (
            shown == "MATCHED 1,000, LOW 2, 3 alerts, 4 duplicates, [yellow]7 late[/], [red]5 entries lost[/]"
        )
