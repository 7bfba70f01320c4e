"""The operations of the queue as flows, for `RedisStreamsQueue` and its asyncio variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Final

from conquiet import payload as json_rule
from conquiet.checks import checked_int
from conquiet.errors import (
    LeaseLostError,
    MalformedEntryError,
    PartialEnqueueError,
    PayloadError,
    QueueConfigError,
    QueueError,
    QueuePayloadError,
    QueueRefusedError,
)
from conquiet.flow import Flow
from conquiet.observe import QueueMetrics
from conquiet.queue.config import QueueConfig, checked_block_ms
from conquiet.queue.message import BacklogStats, ClaimedMessages, MalformedEntry, QueueMessage
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

__all__ = ["StreamOperations"]

Delivered = QueueMessage | MalformedEntry

# Rows per server-side step of a bulk enqueue. A step blocks Redis for about a millisecond.
_CHUNK_ROWS: Final = 1_000
_CHUNK_BYTES: Final = 4 * 1024 * 1024

# The ids are returned as one string, which is parsed ten times as fast as a reply of a thousand parts.
_ENQUEUE_MANY: Final = (
    "local ids = {} "
    "for i, data in ipairs(ARGV) do ids[i] = redis.call('XADD', KEYS[1], '*', 'data', data) end "
    "return table.concat(ids, ' ')"
)

# Checks the holder and acknowledges in one step, so that no consumer can claim the entry in between.
_ACK_IF_OWNER: Final = (
    "local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1] "
    "if not held then return {0} end "
    "if held[2] ~= ARGV[2] then return {0, held[2]} end "
    "return {redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])}"
)


class StreamOperations:
    """The operations on one stream by one consumer of one group."""

    def __init__(
        self, redis: Any, config: QueueConfig, limits: json_rule.PayloadLimits, *, awaits: bool
    ) -> None:
        if not isinstance(config, QueueConfig):
            raise QueueConfigError(f"config must be a QueueConfig, not {type(config).__name__}")
        self.config = config
        self._limits = limits
        self._exchange = Exchange(redis, awaits).exchange
        self._stream = config.stream_key.encode()
        self._group = config.consumer_group.encode()
        self._consumer = config.consumer_name.encode()
        self._metrics = QueueMetrics(config.stream_key)
        self._xadd = bulk_head(5, "XADD", self._stream, "*", "data")
        self._reads: dict[tuple[int, int], bytes] = {}

    def create_group(self) -> Flow[None]:
        """Create the group from the first entry on. A group that exists keeps its position."""
        command = pack("XGROUP", "CREATE", self._stream, self._group, "0-0", "MKSTREAM")
        try:
            yield from self._exchange(self._what("create the consumer group"), command)
        except QueueRefusedError as error:
            if error.code != "BUSYGROUP":  # BUSYGROUP: the group exists
                raise

    def enqueue(self, payload: json_rule.Payload) -> Flow[str]:
        command = self._xadd + bulk(self._encoded(payload))
        entry_id: str = yield from self._exchange(self._what("enqueue"), command, text)
        return entry_id

    def enqueue_many(self, payloads: Iterable[json_rule.Payload]) -> Flow[list[str]]:
        """Check all payloads before the first is sent. Each chunk is added completely or not at all."""
        data = [self._encoded(payload, index) for index, payload in enumerate(payloads)]
        ids: list[str] = []
        for chunk in _chunks(data):
            head = bulk_head(4 + len(chunk), "EVAL", _ENQUEUE_MANY, 1, self._stream)
            command = head + b"".join([b"$%d\r\n%b\r\n" % (len(row), row) for row in chunk])
            try:
                ids += (yield from self._exchange(self._what("enqueue_many"), command, text)).split()
            except QueueError as error:
                if len(chunk) == len(data):
                    raise
                raise PartialEnqueueError(
                    f"{error}. Of {len(data)} payloads, {len(ids)} are certainly in the stream (.ids), the next "
                    f"{len(chunk)} are all in or all not, the rest was not sent",
                    ids,
                    len(chunk),
                ) from error.__cause__
        return ids

    def read(self, block_ms: int, count: int) -> Flow[list[QueueMessage]]:
        checked_block_ms("block_ms", block_ms)
        checked_int("count", count, 1, error=QueueConfigError)
        command = self._reads.get((block_ms, count)) or self._read_command(block_ms, count)
        began = perf_counter()
        messages: list[QueueMessage]
        messages, malformed = yield from self._exchange(
            self._what("read"), command, self._delivered, block_ms=block_ms
        )
        self._metrics.read(len(messages) + len(malformed), perf_counter() - began)
        if malformed:
            raise _malformed(malformed, messages)
        return messages

    def _delivered(self, reply: Any) -> tuple[list[QueueMessage], list[MalformedEntry]]:
        return parse_entries(stream_entries(reply), self.config.stream_key, self.config.consumer_group)

    def _read_command(self, block_ms: int, count: int) -> bytes:
        command = pack(
            *("XREADGROUP", "GROUP", self._group, self._consumer),
            *("COUNT", count, "BLOCK", block_ms, "STREAMS", self._stream, ">"),
        )
        if len(self._reads) < 16:  # bounds the cache if a caller varies the limits
            self._reads[block_ms, count] = command
        return command

    def ack_many(self, messages: Sequence[Delivered], *, what: str = "ack_many") -> Flow[int]:
        """Acknowledge all messages, and return how many were pending."""
        ids = [self._own_id(message) for message in messages]
        acked = 0
        for start in range(0, len(ids), _CHUNK_ROWS):
            chunk = ids[start : start + _CHUNK_ROWS]
            command = pack("XACK", self._stream, self._group, *chunk)
            acked += yield from self._exchange(self._what(what, *chunk[:1]), command, whole)
            self._metrics.acked(len(chunk))  # counted even if the next chunk fails
        return acked

    def ack(self, message: Delivered) -> Flow[None]:
        yield from self.ack_many((message,), what="ack")

    def ack_if_owner(self, message: Delivered) -> Flow[None]:
        entry_id = self._own_id(message)
        command = pack("EVAL", _ACK_IF_OWNER, 1, self._stream, self._group, self._consumer, entry_id)
        acked, owner = yield from self._exchange(self._what("ack_if_owner", entry_id), command, _acked)
        if not acked:
            fate = f"is held by consumer {owner!r} now" if owner is not None else "is not pending any more"
            raise LeaseLostError(
                f"{self._what('ack_if_owner', entry_id)}: refused, the entry {fate}. The work of this consumer "
                "for it may be, or has been, done again: its effect must be idempotent"
            )
        self._metrics.acked(1)

    def claim_stale(self, min_idle_ms: int, count: int) -> Flow[ClaimedMessages]:
        """Take over entries that have been idle for `min_idle_ms`, as measured by Redis."""
        checked_int("min_idle_ms", min_idle_ms, 0, error=QueueConfigError)
        checked_int("count", count, 1, error=QueueConfigError)
        what = self._what("claim_stale")
        # Filtered by IDLE on the server: a page full of fresh entries must not hide stale ones behind it.
        command = pack("XPENDING", self._stream, self._group, "IDLE", min_idle_ms, "-", "+", count)
        stale: list[str] = yield from self._exchange(what, command, _first_of_each)
        if not stale:
            return ClaimedMessages()
        command = pack("XCLAIM", self._stream, self._group, self._consumer, min_idle_ms, *stale)
        messages, malformed = yield from self._exchange(what, command, self._claimed)
        self._metrics.claimed(len(messages) + len(malformed))
        claimed = {entry.id for entry in (*messages, *malformed)}
        # Not claimed: another consumer was faster, or the entry was trimmed or deleted while it was pending
        # (Redis 7 then silently drops it from the pending list).
        gone = yield from self._gone(what, [entry_id for entry_id in stale if entry_id not in claimed])
        if malformed:
            raise _malformed(malformed, ClaimedMessages(messages, gone))
        return ClaimedMessages(messages, gone)

    def _claimed(self, reply: Any) -> tuple[list[QueueMessage], list[MalformedEntry]]:
        entries = [entry for entry in rows(reply) if entry and entry[1] is not None]
        return parse_entries(entries, self.config.stream_key, self.config.consumer_group)

    def _gone(self, what: str, ids: list[str]) -> Flow[list[str]]:
        """Return the `ids` that are no longer in the stream."""
        gone: list[str] = []
        for entry_id in ids:
            command = pack("XRANGE", self._stream, entry_id, entry_id, "COUNT", 1)
            if not (yield from self._exchange(what, command, rows)):
                gone += [entry_id]
        return gone

    def backlog_stats(self) -> Flow[BacklogStats]:
        what = self._what("backlog_stats")
        length = yield from self._exchange(what, pack("XLEN", self._stream), whole)
        # Before XINFO: for a missing stream that says "no such key", while XPENDING says NOGROUP.
        command = pack("XPENDING", self._stream, self._group)
        pending, oldest, by_consumer = yield from self._exchange(what, command, _pending)
        lag = yield from self._exchange(what, pack("XINFO", "GROUPS", self._stream), self._lag)
        command = pack("XPENDING", self._stream, self._group, "-", "+", 1)
        idle_ms = yield from self._exchange(what, command, _idle_ms)
        return BacklogStats(length, lag, pending, by_consumer, oldest, idle_ms)

    def _lag(self, reply: Any) -> int | None:
        group = next((g for g in map(as_mapping, rows(reply)) if g[b"name"] == self._group), {})
        lag = group.get(b"lag")
        return None if lag is None else whole(lag)

    def _encoded(self, payload: json_rule.Payload, index: int | None = None) -> bytes:
        try:
            return json_rule.encode(payload, self._limits)
        except PayloadError as error:
            which = "" if index is None else f" number {index} of this call"
            raise QueuePayloadError(f"{self._what('enqueue')}: payload{which} refused: {error}") from error

    def _own_id(self, message: Delivered) -> bytes:
        if not isinstance(message, QueueMessage | MalformedEntry):
            raise QueueConfigError(
                f"only a QueueMessage or MalformedEntry can be acknowledged, not {type(message).__name__}"
            )
        if (message.stream, message.group) != (self.config.stream_key, self.config.consumer_group):
            raise QueueConfigError(
                f"message {message.id} belongs to stream {message.stream!r}, group {message.group!r}: "
                f"it cannot be acknowledged on {self._what('this queue')}"
            )
        try:
            return message.id.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise QueueConfigError(f"{message.id!a} is not an entry id") from error

    def _what(self, operation: str, entry_id: bytes | None = None) -> str:
        entry = f" of entry {entry_id.decode()}" if entry_id else ""
        return (
            f"{operation}{entry} on stream {self.config.stream_key!r}, group {self.config.consumer_group!r}"
        )


def _acked(reply: Any) -> tuple[int, str | None]:
    acked, *owner = rows(reply)
    return whole(acked), name_of(owner[0]) if owner else None


def _first_of_each(reply: Any) -> list[str]:
    return [text(row[0]) for row in rows(reply)]


def _pending(reply: Any) -> tuple[int, str | None, dict[str, int]]:
    pending, oldest, _, by_consumer = rows(reply)
    held = {name_of(name): int(count) for name, count in by_consumer or ()}
    return whole(pending), text(oldest) if oldest else None, held


def _idle_ms(reply: Any) -> int | None:
    first = rows(reply)
    return whole(first[0][2]) if first else None


def _chunks(data: list[bytes]) -> Iterable[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for row in data:
        if len(chunk) == _CHUNK_ROWS or (chunk and size + len(row) > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row)
    if chunk:
        yield chunk


def _malformed(entries: list[MalformedEntry], messages: list[QueueMessage]) -> MalformedEntryError:
    first = entries[0]
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    return MalformedEntryError(
        f"entry {first.id} of stream {first.stream!r} is malformed: {first.reason}{more}. It stays pending: look "
        "at it, then ack(entry) each of .entries to drop it; .messages are the valid ones of the same call",
        entries,
        messages,
    )
