"""Commands as bytes, and replies as messages. Pure functions.

Commands are packed here, because the Redis client takes longer to pack one than the server to run it. Replies are
read as bytes, whatever the client's `decode_responses` is, in RESP 2 or 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conquiet import payload
from conquiet.errors import PayloadError
from conquiet.queue.message import MalformedEntry, QueueMessage

__all__ = [
    "FIELD",
    "as_mapping",
    "bulk",
    "bulk_head",
    "name_of",
    "pack",
    "parse_entries",
    "rows",
    "stream_entries",
    "text",
    "whole",
]

FIELD = b"data"


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def bulk_head(count: int, *parts: bytes | str | int) -> bytes:
    """Pack the start of a command of `count` parts, with the first of them."""
    encoded = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return b"*%d\r\n%b" % (count, b"".join(map(bulk, encoded)))


def pack(*parts: bytes | str | int) -> bytes:
    """Pack a whole command."""
    return bulk_head(len(parts), *parts)


def text(reply: bytes) -> str:
    """Decode a string reply. These functions raise TypeError for a reply that cannot be Redis's."""
    return bytes.decode(reply)


def whole(reply: Any) -> int:
    if type(reply) is not int:
        raise TypeError(f"{type(reply).__name__} instead of a number")
    return reply


def rows(reply: Any) -> list[Any]:
    if type(reply) is not list:
        raise TypeError(f"{type(reply).__name__} instead of a list")
    return reply


def stream_entries(reply: Any) -> Any:
    """Return the entries in the reply to XREADGROUP for one stream: a map in RESP 3, a list of pairs in RESP 2."""
    if not reply:
        return ()
    if isinstance(reply, Mapping):
        return next(iter(reply.values()))
    return rows(reply)[0][1]


def as_mapping(reply: Any) -> Mapping[bytes, Any]:
    """Convert a reply of names and values: a map in RESP 3, a flat list in RESP 2."""
    if isinstance(reply, Mapping):
        return reply
    named = rows(reply)
    return dict(zip(named[::2], named[1::2], strict=True))


def name_of(name: bytes) -> str:
    """Decode the name of a stream or consumer for display: Redis names are bytes and need not be UTF-8."""
    return name.decode(errors="backslashreplace")


def parse_entries(
    entries: Iterable[Any], stream: str, group: str
) -> tuple[list[QueueMessage], list[MalformedEntry]]:
    """Return the messages, and the malformed entries with a reason each. A bad entry does not affect the others."""
    messages: list[QueueMessage] = []
    malformed: list[MalformedEntry] = []
    for raw_id, fields in entries:
        entry_id = raw_id.decode()
        if len(fields) == 2 and fields[0] == FIELD:
            try:
                messages.append(QueueMessage(entry_id, payload.decode(fields[1]), stream, group))
                continue
            except PayloadError as error:
                reason = f"the field 'data' is {error}"
        else:
            reason = f"its fields are {_names(fields)}, not exactly one field 'data'"
        malformed.append(MalformedEntry(entry_id, stream, group, reason, sum(map(len, fields))))
    return messages, malformed


def _names(fields: list[bytes]) -> str:
    """Format field names for an error message: at most five, shortened and escaped."""
    names = [ascii(name[:40].decode(errors="replace")) for name in fields[::2]]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
