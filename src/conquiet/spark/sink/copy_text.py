"""Arrow columns as the text that PostgreSQL's COPY reads: made column by column, never row by row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["copy_lines"]


def copy_lines(*columns: pa.Array | str) -> memoryview:
    """Rows in COPY's text form; a plain text is the same in every row. The last must be a column.

    The buffer of the joined column is the text itself.
    """
    *first, last = (column if isinstance(column, str) else _written(column) for column in columns)
    last = pc.binary_join_element_wise(last, "\n", "")
    lines = pc.binary_join_element_wise(*first, last, "\t")
    _, offsets, data = lines.buffers()
    if data is None:
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[0] : ends[len(lines)]]


def _written(column: pa.Array) -> pa.Array:
    texts = _escaped(column) if pa.types.is_string(column.type) else column.cast(pa.string())
    return pc.fill_null(texts, "\\N") if texts.null_count else texts


def _escaped(column: pa.Array) -> pa.Array:
    data = column.buffers()[2]
    # One search through all of it is quicker than one for each row.
    content = b"" if data is None else data.to_pybytes()
    for character, written in _ESCAPES.items():  # the backslash first: the others bring some
        if character.encode() in content:
            column = pc.replace_substring(column, character, written)
    return column


_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
