"""Reconciliation on Spark: in bulk, and as reports arrive."""

from conquiet.extras import needed_by

with needed_by("conquiet.reconcile.spark"):
    from conquiet.reconcile.spark.batch import JudgedOutputs, ReconcileOutputs, reconcile_batch
    from conquiet.reconcile.spark.batch_progress import show_batch
    from conquiet.reconcile.spark.inputs import read_metrics, read_reports
    from conquiet.reconcile.spark.outputs.destination import save_outputs
    from conquiet.reconcile.spark.retry_jobs import RetryJobs
    from conquiet.reconcile.spark.stream import reconcile_stream

__all__ = [
    "JudgedOutputs",
    "ReconcileOutputs",
    "RetryJobs",
    "read_metrics",
    "read_reports",
    "reconcile_batch",
    "reconcile_stream",
    "save_outputs",
    "show_batch",
]
