"""The sample as files: platform metrics as Parquet, entries as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from conquiet.reconcile import METRIC_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["MetricsFile", "line_of"]


def line_of(entry: dict[str, Any] | str) -> str:
    """Return an entry of the sample as a line of a file."""
    return entry if isinstance(entry, str) else json.dumps(entry)


class MetricsFile:
    """A Parquet file of metrics, written chunk by chunk. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema: pa.Schema = pa.schema(
            [
                ("platform", pa.string()),
                ("post_id", pa.string()),
                *((name, pa.int64()) for name in METRIC_NAMES),
                ("observed_at", pa.timestamp("us", tz="UTC")),
            ]
        )
        self._writer: pq.ParquetWriter = pq.ParquetWriter(path, self._schema)

    def write(self, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(rows, self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
