"""Checks columns of JSON text before they are written: consumers and workers must be able to read them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from conquiet.errors import PayloadError
from conquiet.payload import DEFAULT_LIMITS, decode

__all__ = ["first_refused"]


def first_refused(texts: pa.Array) -> tuple[int, str] | None:
    """Return the first row that is not a JSON object or is too long, and the reason, which does not quote the text."""
    if texts.null_count:
        return pc.index(pc.is_null(texts), True).as_py(), "it is null"
    lengths = pc.binary_length(texts)
    longest = pc.max(lengths).as_py() or 0
    if longest > DEFAULT_LIMITS.max_bytes:
        return (
            pc.index(lengths, longest).as_py(),
            f"it is {longest} bytes long, over the limit of {DEFAULT_LIMITS.max_bytes}",
        )
    # Cast to bytes: Spark's strings are not always UTF-8.
    return _first_unreadable(texts.cast(pa.binary()).to_pylist())


def _first_unreadable(texts: Iterable[bytes]) -> tuple[int, str] | None:
    row = -1
    try:
        for text in texts:
            row += 1
            decode(text)
    except PayloadError as error:
        return row, str(error)
    return None
