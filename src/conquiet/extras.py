"""The extras of the package: a failed import of an optional package says which one to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

from conquiet.errors import MissingDependencyError

__all__ = ["needed_by"]

_EXTRAS = MappingProxyType(
    {
        "pandas": "spark",
        "psycopg": "postgres",
        "pyarrow": "spark",
        "pyspark": "spark",
        "redis": "redis",
        "sqlalchemy": "reconcile",
        "starlette": "web",
    }
)


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Wrap the imports that `what` needs. The error for a module that belongs to no extra is not changed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingDependencyError(
            f'{what} needs the package {package}: pip install "conquiet[{_EXTRAS[package]}]"'
        ) from error
