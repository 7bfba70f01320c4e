"""Everything PySpark: a session, the streaming source, sinks, tasks on executors.

`spark.readStream.format("conquiet")` needs no import at all; what is here is for the code around it.
"""

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
from conquiet.pipeline.progress import show_progress
from conquiet.pipeline.session import spark_session

__all__ = ["payload", "show_progress", "spark_session"]
