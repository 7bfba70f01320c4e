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
from conquiet.queue.wire.exchange import Exchange
from conquiet.queue.wire.routes import route_to
from conquiet.queue.wire.slots import slot_of, tagged
from conquiet.queue.wire.translation import TRANSPORT_ERRORS, translated

__all__ = [
    "TRANSPORT_ERRORS",
    "Exchange",
    "as_mapping",
    "bulk",
    "bulk_head",
    "name_of",
    "pack",
    "parse_entries",
    "route_to",
    "rows",
    "slot_of",
    "stream_entries",
    "tagged",
    "text",
    "translated",
    "whole",
]
