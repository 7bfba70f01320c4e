"""Everything PySpark: a session, the streaming source, sinks, tasks on executors.

`spark.readStream.format("conquiet")` needs no import at all; what is here is for the code around it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.errors import MissingDependencyError

try:
    import pyspark as _pyspark

    if tuple(int(part) for part in _pyspark.__version__.split(".")[:2]) < (4, 2):
        raise ImportError(f"pyspark {_pyspark.__version__} is too old")
except ImportError as error:
    raise MissingDependencyError(
        f'conquiet.pipeline needs pyspark, version 4.2 or newer ({error}): pip install "conquiet[spark]"'
    ) from error

from conquiet.pipeline.batch_progress import show_batch
from conquiet.pipeline.columns import payload
from conquiet.pipeline.inputs import read_metrics, read_reports
from conquiet.pipeline.outputs import save_outputs
from conquiet.pipeline.progress import show_progress
from conquiet.pipeline.reconcile import ReconcileOutputs, reconcile_batch
from conquiet.pipeline.report_stream import RetryJobs, reconcile_stream
from conquiet.pipeline.session import spark_session

if TYPE_CHECKING:
    from conquiet.pipeline.analytics import (
        mean_trust_by_day,
        outcome_rates,
        quarantine_reasons,
        read_outputs,
        trust_by_day,
    )
    from conquiet.pipeline.analytics_figures import ReportFigures
    from conquiet.pipeline.analytics_jobs import attempt_outcomes, job_attempts, job_times
    from conquiet.pipeline.analytics_report import collect_figures
    from conquiet.pipeline.report_page import write_report
    from conquiet.pipeline.tasks import run_task

__all__ = ["payload", "run_task", "show_batch", "show_progress", "spark_session"]
__all__ += [
    "ReconcileOutputs",
    "RetryJobs",
    "read_metrics",
    "read_reports",
    "reconcile_batch",
    "reconcile_stream",
    "save_outputs",
]
__all__ += [
    "ReportFigures",
    "attempt_outcomes",
    "collect_figures",
    "job_attempts",
    "job_times",
    "mean_trust_by_day",
    "outcome_rates",
    "quarantine_reasons",
    "read_outputs",
    "trust_by_day",
    "write_report",
]

_LATER = {
    "ReportFigures": "analytics_figures",
    "attempt_outcomes": "analytics_jobs",
    "collect_figures": "analytics_report",
    "job_attempts": "analytics_jobs",
    "job_times": "analytics_jobs",
    "mean_trust_by_day": "analytics",
    "outcome_rates": "analytics",
    "quarantine_reasons": "analytics",
    "read_outputs": "analytics",
    "run_task": "tasks",
    "trust_by_day": "analytics",
    "write_report": "report_page",
}


def __getattr__(name: str) -> Any:
    """Spark's Python processes pass through here for the source and the sinks, and need nothing of these for them."""
    if name in _LATER:
        return getattr(import_module(f"conquiet.pipeline.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
