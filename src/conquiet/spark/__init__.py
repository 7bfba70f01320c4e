"""The Spark connector: session, streaming source, sinks, tasks on executors, progress.

`spark.readStream.format("conquiet")` needs no import; these names are for the code around it.
"""

from typing import TYPE_CHECKING

from conquiet.errors import MissingDependencyError
from conquiet.lazy import lazy_names

try:
    import pyspark as _pyspark

    if tuple(int(part) for part in _pyspark.__version__.split(".")[:2]) < (4, 2):
        raise ImportError(f"pyspark {_pyspark.__version__} is too old")
except ImportError as error:
    raise MissingDependencyError(
        f'conquiet.spark needs pyspark, version 4.2 or newer ({error}): pip install "conquiet[spark]"'
    ) from error

if TYPE_CHECKING:
    from conquiet.spark.columns import payload
    from conquiet.spark.progress import show_progress
    from conquiet.spark.session import command_session, spark_session
    from conquiet.spark.tasks import run_task

__all__ = ["command_session", "payload", "run_task", "show_progress", "spark_session"]

_MODULES = {
    "columns": ("payload",),
    "progress": ("show_progress",),
    "session": ("command_session", "spark_session"),
    "tasks": ("run_task",),
}
# Lazy: Spark's Python workers import this package for the source and the sinks only.
__getattr__ = lazy_names(__name__, _MODULES)
