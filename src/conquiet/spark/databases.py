"""Database access on executors: transactions, and Arrow columns in the text format of PostgreSQL's COPY."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from conquiet.access import access_problem
from conquiet.errors import MissingDependencyError, StoreUnavailableError, redact
from conquiet.redaction import redact_dsn, without_password
from conquiet.sqlite_files import opened, transaction

if TYPE_CHECKING:
    import psycopg

__all__ = ["SqliteFile", "copy_lines", "postgres_transaction"]


@contextmanager
def postgres_transaction(dsn: str, what: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a new connection with one transaction, committed at the end, rolled back on an exception."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingDependencyError('psycopg is not installed: pip install "conquiet[postgres]"') from error
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        failed = without_password(error)
        raise StoreUnavailableError(
            f"{what} on {redact_dsn(dsn)}: {redact(str(failed)).strip()}", problem=access_problem(failed)
        ) from failed


class SqliteFile:
    """The file of `sqlite:///file.db` or `sqlite:///file.db?synchronous=NORMAL`."""

    def __init__(self, dsn: str) -> None:
        path, _, setting = dsn.removeprefix("sqlite:///").partition("?")
        self._path = unquote(path)
        self._synchronous = "NORMAL" if setting == "synchronous=NORMAL" else "FULL"

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with opened(self._path, self._synchronous) as connection:
            yield connection

    @contextmanager
    def transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        """Open a new connection with one transaction."""
        with self.open() as connection, transaction(connection, what):
            yield connection


def copy_lines(*columns: pa.Array | str) -> memoryview:
    """Encode rows in the text format of COPY, column by column. A str is repeated in every row, but cannot be last."""
    *first, last = (column if isinstance(column, str) else _written(column) for column in columns)
    last = pc.binary_join_element_wise(last, "\n", "")
    lines = pc.binary_join_element_wise(*first, last, "\t")
    _, offsets, data = lines.buffers()
    if data is None:
        return memoryview(b"")
    # The data buffer of the joined column is the text itself.
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[0] : ends[len(lines)]]


def _written(column: pa.Array) -> pa.Array:
    texts = _escaped(column) if pa.types.is_string(column.type) else column.cast(pa.string())
    return pc.fill_null(texts, "\\N") if texts.null_count else texts


def _escaped(column: pa.Array) -> pa.Array:
    data = column.buffers()[2]
    # One search through the whole buffer is faster than one for each row.
    content = b"" if data is None else data.to_pybytes()
    for character, written in _ESCAPES.items():  # the backslash first: the other escapes contain it
        if character.encode() in content:
            column = pc.replace_substring(column, character, written)
    return column


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
