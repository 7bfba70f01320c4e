"""Outcome rates, trust over time and quarantine reasons equal those of plain Python, in the documented columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile.report.tables import (
    MEAN_TRUST,
    OUTCOMES,
    QUARANTINE_REASONS,
    TRUST_BY_DAY,
    mean_trust_by_day,
    outcome_rates,
    quarantine_reasons,
    read_outputs,
    trust_by_day,
)
from tests.spark.reconcile.report import drawn
from tests.spark.reconcile.report.drawn import Row

pytestmark = pytest.mark.clause("P-13")


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A user's session may have another time zone: days are those of UTC all the same."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def collected(frame: DataFrame, columns: Mapping[str, str]) -> list[Row]:
    assert dict(frame.dtypes) == dict(columns)
    return in_order([row.asDict() for row in frame.collect()])


@pytest.mark.parametrize("by", [("affiliate_id",), ("platform",), ("affiliate_id", "platform")])
def test_outcomes_are_counted_by_the_newest_verdict(spark: SparkSession, by: tuple[str, ...]) -> None:
    rows = drawn.draw_verdicts(seed=1, reports=3_000)
    verdicts = drawn.frame(spark, rows, drawn.VERDICTS)
    expected = drawn.outcomes(rows, by)
    assert sum(row["reports"] for row in expected) == 3_000
    columns = {**dict.fromkeys(by, "string"), **OUTCOMES}
    assert collected(outcome_rates(verdicts, *by), columns) == in_order(expected)
    if len(by) == 2:
        assert outcome_rates(verdicts).columns == list(columns)


def test_trust_is_added_up_and_clamped_per_day(spark: SparkSession, zone: str) -> None:
    rows = drawn.draw_trust(seed=2, events=3_000)
    expected = drawn.scores(rows)
    assert {0, 100} <= {row["score_hundredths"] for row in expected}  # both limits are reached
    by_day = trust_by_day(drawn.frame(spark, rows, drawn.TRUST))
    assert collected(by_day, TRUST_BY_DAY) == in_order(expected)
    means = drawn.means(expected)
    assert len(means) == 16
    assert collected(mean_trust_by_day(by_day), MEAN_TRUST) == in_order(means)


def test_an_affiliate_counts_on_days_without_an_event(spark: SparkSession) -> None:
    """For affiliates with few events: the mean must not be that of the day's own events."""
    rows = drawn.draw_trust(seed=3, events=24)
    means = drawn.means(drawn.scores(rows))
    assert any(row["affiliates"] > row["events"] for row in means)
    by_day = trust_by_day(drawn.frame(spark, rows, drawn.TRUST))
    assert collected(mean_trust_by_day(by_day), MEAN_TRUST) == in_order(means)


def test_reasons_are_counted_whatever_the_values(spark: SparkSession) -> None:
    texts = [
        "not a JSON object",
        "claimed_views must be a whole number from 0 to 9, not -1",
        "claimed_views must be a whole number from 0 to 9, not x, not y\nnot z",
        "submitted_at must be a time with a zone, as in 2026-01-31T12:00:00Z, not noon",
        "submitted_at is 2027-01-01 00:00:00, after 2026-01-31 12:00:00",
        "submitted_at is 2028-01-01 00:00:00, after 2026-01-31 12:00:00",
        "post_id has 256 characters, more than 255",
        "post_id has 9999 characters, more than 255",
    ]
    quarantine = spark.createDataFrame([(text,) for text in texts], "reason string")
    assert collected(quarantine_reasons(quarantine), QUARANTINE_REASONS) == in_order(
        [
            {"reason": "not a JSON object", "rows": 1},
            {"reason": "claimed_views must be a whole number from 0 to 9", "rows": 2},
            {"reason": "submitted_at must be a time with a zone, as in 2026-01-31T12:00:00Z", "rows": 1},
            {"reason": "submitted_at is after the moment of judgement", "rows": 2},
            {"reason": "post_id has more than 255 characters", "rows": 2},
        ]
    )


def test_what_cannot_be_counted_is_refused_by_name(spark: SparkSession) -> None:
    verdicts = drawn.frame(spark, [], drawn.VERDICTS)
    with pytest.raises(ReconcileConfigError, match="verdicts has no column status; it has: report_id, "):
        outcome_rates(verdicts.drop("status"))
    with pytest.raises(ReconcileConfigError, match="attempt of verdicts must be a whole number, not string"):
        outcome_rates(verdicts.withColumn("attempt", verdicts.attempt.cast("string")))
    with pytest.raises(ReconcileConfigError, match="by affiliate_id, by platform or by both, not by status"):
        outcome_rates(verdicts, "status")
    with pytest.raises(ReconcileConfigError, match="no table verdicts in nowhere: give the folder"):
        read_outputs(spark, "nowhere")
