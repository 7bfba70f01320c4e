"""The options of `format("conquiet")` for reading, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from conquiet.errors import QueueConfigError

__all__ = ["BLOCK_ENTRIES", "SOURCE_SCHEMA", "SourceOptions", "checked_schema"]

SOURCE_SCHEMA = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("data", StringType(), nullable=True),
        StructField("enqueued_at", TimestampType(), nullable=True),
    ]
)

# Entries in one claim, which blocks Redis for about 15 ms.
BLOCK_ENTRIES = 5_000

_STREAMING = (
    "url",
    "stream",
    "group",
    "consumer",
    "maxEntriesPerTrigger",
    "partitions",
    "failOnDataLoss",
    "heartbeat",
)
_DIGITS = 18  # what Spark and Redis can count
_NAMES = {name.lower(): name for name in _STREAMING}


@dataclass(frozen=True)
class SourceOptions:
    """The options of a streaming read. `heartbeat` is in seconds."""

    url: str = field(repr=False)
    stream: str
    group: str
    consumer: str
    max_entries_per_trigger: int
    partitions: int
    fail_on_data_loss: bool
    heartbeat: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        refuse_unknown(options, _NAMES)
        return cls(
            url=required(options, "url"),
            stream=required(options, "stream"),
            group=required(options, "group"),
            consumer=required(options, "consumer"),
            max_entries_per_trigger=positive_int(options, "maxEntriesPerTrigger", 200_000),
            partitions=positive_int(options, "partitions", os.cpu_count() or 1),
            fail_on_data_loss=flag(options, "failOnDataLoss", True),
            heartbeat=_seconds(options, "heartbeat", 15.0),
        )

    @property
    def block_entries(self) -> int:
        """The size of a block: small enough that a full micro-batch has a block for each partition."""
        return max(1, min(BLOCK_ENTRIES, self.max_entries_per_trigger // self.partitions))


def checked_schema(schema: StructType) -> StructType:
    """Return `schema` if it is the source's fixed schema; raise otherwise."""
    if [(field.name, field.dataType) for field in schema] != [(f.name, f.dataType) for f in SOURCE_SCHEMA]:
        raise QueueConfigError(
            f'format("conquiet") has the columns {SOURCE_SCHEMA.simpleString()}: leave .schema(…) out, and parse '
            "`data` with conquiet.spark.payload(schema)"
        )
    return schema


def refuse_unknown(options: Mapping[str, str], names: Mapping[str, str]) -> None:
    unknown = sorted(name for name in options if name.lower() not in names)
    if unknown:
        raise QueueConfigError(
            f'format("conquiet") has no option {", ".join(unknown)} for this kind of read; there are: '
            f"{', '.join(names.values())}"
        )


def required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise QueueConfigError(
            f'format("conquiet") needs the option {name}: .option("{name}", …){_WHY.get(name, "")}'
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise QueueConfigError(f"option {name} is not valid Unicode: it contains a lone surrogate") from None
    return value


_WHY = {
    "consumer": "; a name for this query that no other running query of the group has",
}


def positive_int(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS or int(text) < 1:
        raise QueueConfigError(
            f"option {name} must be a whole number of at least 1, with at most {_DIGITS} digits, not {text[:30]!r}"
        )
    return int(text)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise QueueConfigError(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise QueueConfigError(
            f"option {name} must be a number of seconds between 0.1 and 86400, not {text!r}"
        )
    return seconds
