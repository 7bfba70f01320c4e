"""Retries of the Spark pipeline as jobs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from conquiet.reconcile import ReconciliationJob
from conquiet.reconcile.spark.inputs import REPORTS
from conquiet.reconcile.spark.retry_jobs import retry_jobs


@pytest.mark.clause("P-08")
def test_spark_and_python_give_a_job_the_same_id(spark: SparkSession) -> None:
    attempts = [(0, 1), (1, 2), (1_234_567, 12), (2**63 - 1, 2**31 - 1), (-5, 3)]
    retries = spark.createDataFrame(attempts, "report_id bigint, attempt bigint")
    others = {name: f.lit(None) for name in REPORTS if name not in ("report_id", "attempt")}
    jobs = retry_jobs(retries.withColumns({**others, "scheduled_retry_at": f.current_timestamp()}))
    assert [row.id for row in jobs.select("id").collect()] == [
        ReconciliationJob(report_id, attempt=attempt).id for report_id, attempt in attempts
    ]
    assert ReconciliationJob(7, attempt=2).id == "report-7-attempt-2"
