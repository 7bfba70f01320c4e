"""Everything PySpark: a session, the streaming source, sinks, tasks on executors.

`spark.readStream.format("conquiet")` needs no import at all; what is here is for the code around it.
"""

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

from conquiet.pipeline.columns import payload
from conquiet.pipeline.inputs import read_metrics, read_reports
from conquiet.pipeline.progress import show_progress
from conquiet.pipeline.reconcile import ReconcileOutputs, reconcile_batch
from conquiet.pipeline.report_stream import RetryJobs, reconcile_stream
from conquiet.pipeline.session import spark_session

if TYPE_CHECKING:
    from conquiet.pipeline.tasks import run_task

__all__ = ["payload", "run_task", "show_progress", "spark_session"]
__all__ += [
    "ReconcileOutputs",
    "RetryJobs",
    "read_metrics",
    "read_reports",
    "reconcile_batch",
    "reconcile_stream",
]


def __getattr__(name: str) -> Any:
    """Spark's Python processes pass through here for the source and the sinks, and need no engine for these."""
    if name == "run_task":
        from conquiet.pipeline.tasks import run_task

        return run_task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
