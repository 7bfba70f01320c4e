"""What the Spark verbs share: the session, checks of the inputs before it starts, Spark's errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.errors import ForeignError, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MasterFlag", "format_of", "session_of"]

MasterFlag = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Spark's master; default: all cores of this machine.",
        metavar="URL",
        show_default=False,
    ),
]

_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


def format_of(path: str, given: str | None, flag: str) -> str:
    """parquet, json or csv, from the name of the file; a folder is Parquet.

    A missing local path is refused here: Spark takes long to report it.
    """
    if "://" not in path and not any(sign in path for sign in "*?[{") and not Path(path).exists():
        raise SettingsError(f"there is no file or folder {path}, which {flag} names")
    known = sorted(set(_FORMATS.values()))
    if given is not None:
        if given not in known:
            raise SettingsError(f"{flag}-format is one of {', '.join(known)}, not {given!r}")
        return given
    suffix = Path(path.rstrip("/")).suffix.lower()
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    if suffix and not Path(path).is_dir():
        raise SettingsError(f"the format of {path} is unknown: give {flag}-format, one of {', '.join(known)}")
    return "parquet"


@contextmanager
def session_of(name: str, master: str | None) -> Iterator[SparkSession]:
    from conquiet.spark import command_session

    with command_session(name, master) as spark, _spark_errors():
        yield spark


@contextmanager
def _spark_errors() -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except Exception as error:
        # Py4J raises errors for which PySpark has no class.
        if not isinstance(error, PySparkException) and not type(error).__module__.startswith("py4j"):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ForeignError(
            f"Spark: {lines[0] if lines else type(error).__name__} (--debug shows more)"
        ) from error
