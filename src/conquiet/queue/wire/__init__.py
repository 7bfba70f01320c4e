"""Redis commands as bytes and replies as values, also for other rooms that use Redis directly."""

from conquiet.queue.wire.commands import (
    as_mapping,
    bulk,
    bulk_head,
    name_of,
    pack,
    parse_entries,
    rows,
    stream_entries,
    text,
    whole,
)
from conquiet.queue.wire.exchange import TRANSPORT_ERRORS, Exchange, translated

__all__ = [
    "TRANSPORT_ERRORS",
    "Exchange",
    "as_mapping",
    "bulk",
    "bulk_head",
    "name_of",
    "pack",
    "parse_entries",
    "rows",
    "stream_entries",
    "text",
    "translated",
    "whole",
]
