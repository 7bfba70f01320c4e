"""From the outputs of reconciliation and the history of jobs to the figures, and to the page."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conquiet.jobs import open_store
from conquiet.reconcile import DEFAULT_RULES, Status
from conquiet.reconcile.report.collection import collect_figures
from conquiet.reconcile.report.figures import ReportFigures
from conquiet.reconcile.report.job_history import job_attempts
from conquiet.reconcile.report.page import report_html, write_report
from conquiet.reconcile.report.tables import outcome_rates, quarantine_reasons, read_outputs, trust_by_day
from conquiet.reconcile.report.text import cut
from conquiet.reconcile.spark.batch import ReconcileOutputs, reconcile_batch
from tests.spark.reconcile.report import drawn
from tests.spark.reconcile.spark import cases

pytestmark = pytest.mark.clause("P-13")

TRUST = drawn.draw_trust(seed=8, events=700)
ALERTS = pa.schema([("kind", pa.string()), ("severity", pa.string())])
RETRIES = pa.schema([("report_id", pa.int64())])
QUARANTINE = pa.schema([("reason", pa.string())])


@pytest.fixture(scope="module")
def outputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ReconcileOutputs:
    """Tables as a stream writes them, in folders of days and micro-batches."""
    folder = tmp_path_factory.mktemp("outputs")
    verdicts = drawn.draw_verdicts(seed=8, reports=1_500)
    for row in verdicts:
        row["platform"] = f"platform {row['report_id'] % 25:02}"
    kinds = [("fraud", "high")] * 9 + [("fraud", "critical")] * 4 + [("data_quality", "medium")] * 2
    reasons = [f"attempt must be a whole number, not {-n}" for n in range(5)] + ["not a JSON object"] * 3
    tables: dict[str, tuple[list[drawn.Row], pa.Schema]] = {
        "verdicts": (verdicts, drawn.VERDICTS),
        "trust": (TRUST, drawn.TRUST),
        "alerts": ([{"kind": kind, "severity": severity} for kind, severity in kinds], ALERTS),
        "retries": ([row for row in verdicts if row["scheduled_retry_at"] is not None], RETRIES),
        "quarantine": ([{"reason": reason} for reason in reasons], QUARANTINE),
    }
    for name, (rows, schema) in tables.items():
        for number in range(2):
            part = folder / name / f"day=2026-01-3{number}" / f"batch=0-{number}"
            part.mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(rows[number::2], schema), part / "part.parquet")
    return read_outputs(spark, str(folder))


@pytest.fixture(scope="module")
def figures(
    spark: SparkSession, outputs: ReconcileOutputs, tmp_path_factory: pytest.TempPathFactory
) -> ReportFigures:
    with open_store("memory://") as store:
        store.enqueue_many("mail", [{} for _ in range(5)])
        store.ack_many(store.claim("mail", limit=4))
        attempts = job_attempts(spark, store, f"{tmp_path_factory.mktemp('history')}/attempts")
        return collect_figures(outputs, attempts=attempts, queues=store.stats(), lost=0)


def test_the_figures_are_those_of_the_tables(outputs: ReconcileOutputs, figures: ReportFigures) -> None:
    verdicts = [row.asDict() for row in outputs.verdicts.collect()]
    expected = drawn.outcomes(verdicts, ("platform",))
    expected.sort(key=lambda row: (-row["reports"], row["platform"]))
    assert [(one.name, one.reports, dict(one.by_status)) for one in figures.platforms] == [
        (row["platform"], row["reports"], {status: row[status.value.lower()] for status in Status})
        for row in expected[:10]
    ]
    assert figures.other_platforms is not None
    for status in Status:
        rest = sum(row[status.value.lower()] for row in expected[10:])
        assert figures.other_platforms.by_status[status] == rest
    assert figures.other_platforms.reports == sum(row["reports"] for row in expected[10:])
    assert figures.total.reports == sum(row["reports"] for row in expected) > 1_000
    assert sum(figures.total.by_status.values()) == figures.total.reports
    assert figures.judged_again == sum(row["judged_again"] for row in expected) > 50
    assert figures.pending == sum(row["pending"] for row in expected)
    assert figures.retries == outputs.retries.count() > figures.pending
    assert (figures.affiliates_in_all, figures.platforms_in_all) == (len(drawn.NAMES), 25)
    assert [(one.kind, one.severity, one.count) for one in figures.alerts] == [
        ("fraud", "high", 9),
        ("fraud", "critical", 4),
        ("data_quality", "medium", 2),
    ]
    assert figures.quarantine == 8
    assert figures.quarantine_reasons == (("attempt must be a whole number", 5), ("not a JSON object", 3))
    assert figures.lost == 0


def test_affiliates_come_in_the_order_of_what_is_certain(
    outputs: ReconcileOutputs, figures: ReportFigures
) -> None:
    verdicts = [row.asDict() for row in outputs.verdicts.collect()]
    rows = drawn.outcomes(verdicts, ("affiliate_id",))
    scores = {row["affiliate_id"]: row["score_hundredths"] / 100 for row in drawn.scores(TRUST)}

    def contested(row: drawn.Row) -> int:
        return int(row["affiliate_overclaimed"] + row["discrepancy_high"])

    rows.sort(key=lambda row: -wilson(contested(row), row["reports"]))
    assert [(one.name, one.reports, one.score) for one in figures.affiliates] == [
        (row["affiliate_id"], row["reports"], scores[row["affiliate_id"]]) for row in rows
    ]
    assert wilson(1, 1) < wilson(50, 80)  # one of one proves little


def test_trust_goes_over_all_days(figures: ReportFigures) -> None:
    by_day = drawn.scores(TRUST)
    assert [(one.day, one.affiliates, one.below_start, one.mean_score) for one in figures.trust_days] == [
        (row["day"], row["affiliates"], row["below_start"], row["mean_score"]) for row in drawn.means(by_day)
    ]
    assert len(figures.trust_days) == 16
    last = {row["affiliate_id"]: sum_of(by_day, row["affiliate_id"]) for row in by_day}
    fallen = sorted((name for name in last if last[name] < 0), key=lambda name: (last[name], name))[:4]
    risen = sorted((name for name in last if last[name] > 0), key=lambda name: (-last[name], name))[:2]
    assert [line.affiliate_id for line in figures.trust_lines] == fallen + risen
    assert fallen
    assert risen
    for line in figures.trust_lines:
        assert line.start == DEFAULT_RULES.trust.start / 100
        assert list(line.days) == [
            (row["day"], row["score_hundredths"] / 100)
            for row in by_day
            if row["affiliate_id"] == line.affiliate_id
        ]


def test_the_page_shows_them(figures: ReportFigures, tmp_path: Path) -> None:
    assert figures.jobs is not None
    assert {(row.queue, row.measure, row.attempts) for row in figures.jobs.times} == {
        ("mail", "first_wait", 4),
        ("mail", "processing", 4),
    }
    assert figures.jobs.outcomes == {"succeeded": 4}
    assert [(one.queue, one.ready, one.succeeded) for one in figures.jobs.queues] == [("mail", 1, 4)]
    page = write_report(tmp_path / "report.html", figures).read_text(encoding="utf-8")
    assert f"{figures.total.reports:,}" in page
    assert page.count("<svg ") > 10
    assert "No job history" not in page
    assert f"{escape(cut(figures.affiliates[0].name, 48))}</bdi>" in page


def test_the_outputs_of_reconciliation_have_the_columns(spark: SparkSession) -> None:
    """Spark only analyses the plan here; the page of the documentation runs it."""
    reports = spark.createDataFrame(cases.REPORTS.empty_table())
    judged = reconcile_batch(reports, spark.createDataFrame(cases.METRICS.empty_table()), as_of=cases.AS_OF)
    assert outcome_rates(judged.verdicts).columns
    assert trust_by_day(judged.trust).columns
    assert quarantine_reasons(judged.quarantine).columns
    assert {"kind", "severity"} <= set(judged.alerts.columns)


def test_of_nothing_there_is_a_page_too(outputs: ReconcileOutputs) -> None:
    figures = collect_figures(ReconcileOutputs(*(table.limit(0) for table in outputs)))
    assert figures.total.reports == figures.quarantine == figures.pending == 0
    assert (figures.platforms, figures.affiliates, figures.trust_days, figures.alerts) == ((), (), (), ())
    assert (figures.jobs, figures.lost) == (None, None)
    assert "No report was judged" in report_html(figures)


def sum_of(by_day: list[drawn.Row], name: str) -> int:
    return sum(row["delta_hundredths"] for row in by_day if row["affiliate_id"] == name)


def wilson(part: int, whole: int) -> float:
    share, z = part / whole, 1.96
    margin = z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return (share + z * z / (2 * whole) - margin) / (1 + z * z / whole)
