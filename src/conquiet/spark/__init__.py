"""The Spark connector: a session, the streaming source, sinks, tasks on executors, progress.

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
        f'conquiet.spark needs pyspark, version 4.2 or newer ({error}): pip install "conquiet[spark]"'
    ) from error

if TYPE_CHECKING:
    from conquiet.spark.columns import payload
    from conquiet.spark.progress import show_progress
    from conquiet.spark.session import spark_session
    from conquiet.spark.tasks import run_task

__all__ = ["payload", "run_task", "show_progress", "spark_session"]

_MODULES = {
    "payload": "columns",
    "run_task": "tasks",
    "show_progress": "progress",
    "spark_session": "session",
}


def __getattr__(name: str) -> Any:
    """Import on first use: Spark's Python workers pass through here for the source and the sinks, and need none of it."""
    if name in _MODULES:
        return getattr(import_module(f"conquiet.spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
