"""A view of a Redis server for the stream verbs: its queries create nothing and take no entries from consumers.

It uses the queue's exchange, so errors are the queue's. `RedisStreamsQueue` would create a consumer group for a mistyped
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from conquiet.cli.output import session
from conquiet.cli.settings import REDIS_URL
from conquiet.errors import UnknownNameError
from conquiet.flow import run
from conquiet.payload import DEFAULT_LIMITS
from conquiet.queue import QueueConfig, connect
from conquiet.queue.flows import StreamOperations
from conquiet.queue.wire import Exchange, as_mapping, name_of, pack, parse_entries, stream_entries

__all__ = ["Consumer", "PendingEntry", "RedisLook"]

_NAMES_PER_STEP = 1_000
_NOBODY = "nobody"  # placeholder for the group and the consumer in calls that use neither


# Removing a consumer drops what is pending for it, for ever. So the check and the removal are one step: nothing can be
# delivered to it in between. Returns the names that were removed.
_FORGET = (
    "local asked, forgotten = {}, {} "
    "for i = 3, #ARGV do asked[ARGV[i]] = true end "
    "for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do "
    "local found = {} "
    "for i = 1, #consumer, 2 do found[consumer[i]] = consumer[i + 1] end "
    "if asked[found['name']] and found['pending'] == 0 and found['idle'] >= tonumber(ARGV[2]) then "
    "redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], found['name']) "
    "forgotten[#forgotten + 1] = found['name'] end end "
    "return forgotten"
)


class Consumer(NamedTuple):
    name: bytes  # need not be UTF-8
    pending: int
    idle_ms: int


class PendingEntry(NamedTuple):
    id: str
    consumer: str
    idle_ms: int
    deliveries: int


class RedisLook:
    def __init__(self, flag: str | None) -> None:
        self.redis = connect(str(session.settings.need(REDIS_URL, flag)))
        self._exchange = Exchange(self.redis, awaits=False).exchange

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def ask(self, what: str, *command: bytes | str | int, block_ms: int | None = None) -> Any:
        return run(self._exchange(what, pack(*command), block_ms=block_ms))

    def enqueue_many(self, stream: str, payloads: list[dict[str, Any]]) -> list[str]:
        return run(self._operations(stream, _NOBODY).enqueue_many(payloads))

    def info(self, section: str) -> dict[str, str]:
        lines = self.ask("INFO", "INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def groups(self, stream: str) -> list[str]:
        """The groups of a stream; UnknownNameError if the stream does not exist."""
        kind = self.ask(f"look at stream {stream!r}", "TYPE", stream).decode()
        if kind == "none":
            raise UnknownNameError(f"there is no stream {stream!r}{self._others()}")
        if kind != "stream":
            raise UnknownNameError(f"{stream!r} is a {kind}, not a stream{self._others()}")
        groups = self.ask(f"look at stream {stream!r}", "XINFO", "GROUPS", stream)
        names = [as_mapping(found)[b"name"] for found in groups]
        # conquiet cannot use a group whose name is not UTF-8, so it is not listed.
        return [name.decode() for name in names if name_of(name).encode() == name]

    def check_group(self, stream: str, group: str) -> None:
        groups = self.groups(stream)
        if group not in groups:
            names = ", ".join(groups) or "none"
            raise UnknownNameError(f"stream {stream!r} has no consumer group {group!r}; its groups: {names}")

    def backlog(self, stream: str, group: str) -> dict[str, Any]:
        return {"group": group, **asdict(run(self._operations(stream, group).backlog_stats()))}

    def length(self, stream: str) -> int:
        return int(self.ask(f"look at stream {stream!r}", "XLEN", stream))

    def newest(self, stream: str, count: int) -> list[dict[str, Any]]:
        if count == 0:
            return []
        reply = self.ask(f"read stream {stream!r}", "XREVRANGE", stream, "+", "-", "COUNT", count)
        return _shown(reversed(reply), stream)

    def entries(self, stream: str, ids: list[str]) -> list[dict[str, Any]]:
        """Those of the entries `ids` that still exist."""
        replies = [self.ask(f"read stream {stream!r}", "XRANGE", stream, entry, entry) for entry in ids]
        return _shown((entry for reply in replies for entry in reply), stream)

    def follow(self, stream: str, after: str, block_ms: int) -> Iterator[list[dict[str, Any]]]:
        """Entries as they are added, without end. Reads outside of any group, so consumers still get them."""
        while True:
            command = ("XREAD", "COUNT", 100, "BLOCK", block_ms, "STREAMS", stream, after)
            entries = stream_entries(self.ask(f"read stream {stream!r}", *command, block_ms=block_ms))
            if entries:
                after = entries[-1][0].decode()
                yield _shown(entries, stream)

    def last_id(self, stream: str) -> str:
        info = as_mapping(self.ask(f"look at stream {stream!r}", "XINFO", "STREAM", stream))
        return str(info[b"last-generated-id"].decode())

    def stale(self, stream: str, group: str, min_idle_ms: int, count: int) -> list[PendingEntry]:
        command = ("XPENDING", stream, group, "IDLE", min_idle_ms, "-", "+", count)
        reply = self.ask(f"read the pending entries of stream {stream!r}, group {group!r}", *command)
        return [
            PendingEntry(entry.decode(), name_of(consumer), idle, deliveries)
            for entry, consumer, idle, deliveries in reply
        ]

    def consumers(self, stream: str, group: str) -> list[Consumer]:
        """The consumers of a group, the one that was idle the longest first."""
        reply = self.ask(
            f"read the consumers of stream {stream!r}, group {group!r}", "XINFO", "CONSUMERS", stream, group
        )
        found = [as_mapping(row) for row in reply]
        made = [Consumer(row[b"name"], int(row[b"pending"]), int(row[b"idle"])) for row in found]
        return sorted(made, key=lambda consumer: (-consumer.idle_ms, consumer.name))

    def forget(self, stream: str, group: str, idle_ms: int, names: list[bytes]) -> list[bytes]:
        """Remove those of the consumers `names` that hold nothing and have been idle for so long, in one step each."""
        forgotten: list[bytes] = []
        for start in range(0, len(names), _NAMES_PER_STEP):
            what = f"forget consumers of stream {stream!r}, group {group!r}"
            chunk = names[start : start + _NAMES_PER_STEP]
            forgotten += self.ask(what, "EVAL", _FORGET, 1, stream, group, idle_ms, *chunk)
        return forgotten

    def _operations(self, stream: str, group: str) -> StreamOperations:
        config = QueueConfig(stream, group, _NOBODY)
        return StreamOperations(self.redis, config, DEFAULT_LIMITS, awaits=False)

    def _others(self) -> str:
        """Names of some existing streams: one SCAN step, not a search of the whole server."""
        _, names = self.ask("look for streams", "SCAN", 0, "TYPE", "stream", "COUNT", 1_000)
        found = ", ".join(sorted(name_of(name) for name in names)[:10])
        return (
            f"; streams on that server: {found}"
            if found
            else "; no streams were found on that server by a quick scan"
        )


def _shown(entries: Any, stream: str) -> list[dict[str, Any]]:
    raw = list(entries)
    messages, malformed = parse_entries(raw, stream, _NOBODY)
    shown: dict[str, dict[str, Any]] = {message.id: {"payload": message.payload} for message in messages}
    shown |= {entry.id: {"malformed": entry.reason} for entry in malformed}
    return [
        {"id": entry_id, "at": _moment(entry_id), **shown[entry_id]}
        for entry_id in (row[0].decode() for row in raw)
    ]


def _moment(entry_id: str) -> str:
    """When the entry was added, by Redis's clock; empty if the id was given explicitly and is not a time."""
    try:
        return datetime.fromtimestamp(int(entry_id.partition("-")[0]) / 1000, UTC).isoformat(
            timespec="milliseconds"
        )
    except (OverflowError, ValueError, OSError):
        return ""
