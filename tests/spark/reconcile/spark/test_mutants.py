"""Faults put into the reconciliation on Spark: a comparison with the per-job path on a small sample notices each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conquiet.reconcile import DEFAULT_RULES
from conquiet.reconcile.spark.batch import reconcile_batch
from tests.mutants.mutation import Mutant, mutant
from tests.spark.reconcile.spark.cases import AS_OF, METRICS, REPORTS, Row, draw, verdicts

VERDICTS = "conquiet.reconcile.spark.verdicts:"
BATCH = "conquiet.reconcile.spark.batch:"
SEED, SIZE = 23, 1_500  # fixed: the sample has a case for each mutant

MUTANTS = [
    mutant(
        "an overclaim begins above its limit",
        *("", ()),
        (f"{VERDICTS}_status", 'f.col("most_above") >= f.lit', 'f.col("most_above") > f.lit'),
    ),
    mutant(
        "a difference at the limit is not matched",
        *("", ()),
        (
            f"{VERDICTS}_status",
            "max_diff <= f.lit(float(rules.matched_up_to))",
            "max_diff < f.lit(float(rules.matched_up_to))",
        ),
    ),
    mutant(
        "the allowance does not end",
        *("", ()),
        (f"{VERDICTS}_allowance", "f.lit(float(rules.growth_cap_hours)), hours", "f.lit(1e9), hours"),
    ),
    mutant(
        "one attempt too many",
        *("", ()),
        (f"{VERDICTS}_retry_at", '(f.col("attempt") < rule', '(f.col("attempt") <= rule'),
    ),
    mutant(
        "an observation of the future counts",
        *("", ()),
        (f"{BATCH}_newest", 'metrics.where(f.col("observed_at") <= f.lit(as_of))', "metrics"),
    ),
    mutant(
        "a report counts twice", *("", ()), (f"{BATCH}judged_reports", "if not unique_reports:", "if False:")
    ),
]


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Callable[[], list[Row]]:
    """Returns the rows that differ from those of the per-job path."""
    cases = draw(SEED, SIZE)
    reports = spark.createDataFrame(pa.Table.from_pylist(cases.reports, REPORTS)).localCheckpoint()
    metrics = spark.createDataFrame(pa.Table.from_pylist(cases.metrics, METRICS)).localCheckpoint()
    expected = sorted((row for row, _ in verdicts(cases, DEFAULT_RULES)), key=_key)

    def judge() -> list[Row]:
        outputs = reconcile_batch(reports, metrics, DEFAULT_RULES, AS_OF)
        found: list[Row] = sorted(outputs.verdicts.toArrow().to_pylist(), key=_key)
        return [row or wanted or {} for row, wanted in zip_longest(found, expected) if row != wanted]

    return judge


def _key(row: Row) -> tuple[int, int]:
    return row["report_id"], row["attempt"]


def test_the_real_code_judges_the_sample_right(judge: Callable[[], list[Row]]) -> None:
    assert judge() == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(judge: Callable[[], list[Row]], mutant: Mutant) -> None:
    with mutant.applied():
        assert judge() != []
