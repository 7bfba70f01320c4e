"""The operations of the queue as flows, for `RedisStreamsQueue` and its asyncio variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from conquiet import payload as json_rule
from conquiet.checks import checked_int
from conquiet.errors import (
    GroupLostError,
    LeaseLostError,
    MalformedEntryError,
    OutcomeUnknownError,
    PartialEnqueueError,
    PayloadError,
    QueueConfigError,
    QueueError,
    QueuePayloadError,
    QueueRefusedError,
    UnreplicatedEnqueueError,
)
from conquiet.flow import Flow
from conquiet.observe import QueueMetrics
from conquiet.queue.config import QueueConfig, checked_block_ms
from conquiet.queue.flows.scripts import ACK_IF_OWNER, ENQUEUE_MANY, GONE, HAS_NEW, LAST_ID_PART
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

__all__ = ["StreamOperations", "malformed_error"]

Delivered = QueueMessage | MalformedEntry

# Rows per server-side step of a bulk enqueue. A step blocks Redis for about a millisecond.
_CHUNK_ROWS: Final = 1_000
_CHUNK_BYTES: Final = 4 * 1024 * 1024


class StreamOperations:
    """The operations on one stream by one consumer of one group."""

    def __init__(
        self,
        redis: Any,
        config: QueueConfig,
        limits: json_rule.PayloadLimits,
        *,
        awaits: bool,
        create: str | None = None,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 1_000,
    ) -> None:
        """`create` is the call that creates the group for this object, if it may be used without."""
        if not isinstance(config, QueueConfig):
            raise QueueConfigError(f"config must be a QueueConfig, not {type(config).__name__}")
        self.config = config
        self.awaits = awaits
        self._limits = limits
        self._wire = Exchange(redis, awaits, config.stream_key)
        self._create = create
        self._exchange = self._wire.exchange if create is None else self._exchange_before_create
        checked_int("min_replicas", min_replicas, 0, error=QueueConfigError)
        checked_block_ms("replicas_timeout_ms", replicas_timeout_ms)
        self._replicas = (min_replicas, replicas_timeout_ms) if min_replicas else None
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
            yield from self._wire.exchange(self._what("create the consumer group"), command)
        except QueueRefusedError as error:
            if error.code != "BUSYGROUP":  # BUSYGROUP: the group exists
                raise
        self._exchange = self._wire.exchange

    def _exchange_before_create(self, what: str, *args: Any, **options: Any) -> Flow[Any]:
        try:
            return (yield from self._wire.exchange(what, *args, **options))
        except GroupLostError as error:
            raise GroupLostError(
                f"{what}: there is no such group, and this object was made without creating it: "
                f"use {self._create}"
            ) from error.__cause__

    def enqueue(self, payload: json_rule.Payload) -> Flow[str]:
        command = self._xadd + bulk(self._encoded(payload))
        if self._replicas is not None:
            return (yield from self._added("enqueue", command))[0]
        entry_id: str = yield from self._exchange(self._what("enqueue"), command, text)
        return entry_id

    def enqueue_many(self, payloads: Iterable[json_rule.Payload]) -> Flow[list[str]]:
        """Check all payloads before the first is sent. Each chunk is added completely or not at all."""
        given: object = payloads  # which may be anything, and one payload is no list of its keys
        if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
            raise QueuePayloadError(
                f"{self._what('enqueue_many')} takes several payloads (a list, a generator, …), not {type(payloads).__name__}"
            )
        data = [self._encoded(payload, index) for index, payload in enumerate(payloads)]
        ids: list[str] = []
        for chunk in _chunks(data):
            room = LAST_ID_PART - len(chunk)
            head = bulk_head(5 + len(chunk), "EVAL", ENQUEUE_MANY, 1, self._stream, room)
            command = head + b"".join([b"$%d\r\n%b\r\n" % (len(row), row) for row in chunk])
            try:
                ids += yield from self._added("enqueue_many", command)
            except QueueError as error:
                unknown = len(chunk) if isinstance(error, OutcomeUnknownError) else 0
                if len(chunk) == len(data) or not (ids or unknown):
                    raise  # all were added or none, or certainly none: the error itself says it
                rest = len(data) - len(ids) - unknown
                doubtful = f", the next {unknown} are all in or all not (.unknown)" if unknown else ""
                raise PartialEnqueueError(
                    f"{error}. Of {len(data)} payloads, {len(ids)} are certainly in the stream (.ids){doubtful}, the last "
                    f"{rest} certainly not (.not_added)",
                    ids,
                    unknown,
                    rest,
                ) from error.__cause__ or error
        return ids

    def _added(self, operation: str, command: bytes) -> Flow[list[str]]:
        """Send a command that adds entries, wait for the replicas if that is asked for, and return the ids."""
        what = self._what(operation)
        if self._replicas is None:
            ids: list[str] = (yield from self._exchange(what, command, text)).split()
            return ids
        reply, held = yield from self._exchange(what, command, text, replicas=self._replicas)
        ids = reply.split()
        needed, wait_ms = self._replicas
        if isinstance(held, int) and held >= needed:
            return ids
        entries = f"entry {ids[0]} is" if len(ids) == 1 else f"{len(ids)} entries, {ids[0]} to {ids[-1]}, are"
        known = (
            f"{held} of {needed} replicas have" if isinstance(held, int) else "no replica is known to have"
        )
        raise UnreplicatedEnqueueError(
            f"{what}: {entries} on the master, and {known} confirmed that within {wait_ms} ms. A failover may lose "
            "what was not confirmed: enqueue again only if consumers are idempotent, or look for .ids in the stream",
            ids,
            held if isinstance(held, int) else None,
        ) from (None if isinstance(held, int) else held)

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
            raise malformed_error(malformed, messages)
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
        if not isinstance(messages, Iterable):
            raise QueueConfigError(
                f"{what} takes several messages (a list, a tuple, …), not {type(messages).__name__}"
            )
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
        command = pack("EVAL", ACK_IF_OWNER, 1, self._stream, self._group, self._consumer, entry_id)
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
        stale = yield from self.stale(min_idle_ms, count)
        if not stale:
            return ClaimedMessages()
        messages, malformed = yield from self.claim(stale, min_idle_ms)
        claimed = {entry.id for entry in messages} | {entry.id for entry in malformed}
        # Not claimed: another consumer was faster, or the entry was trimmed or deleted while it was pending
        # (Redis 7 then silently drops it from the pending list).
        gone = yield from self.gone([entry_id for entry_id in stale if entry_id not in claimed])
        if malformed:
            raise malformed_error(malformed, ClaimedMessages(messages, gone))
        return ClaimedMessages(messages, gone)

    def stale(self, min_idle_ms: int, count: int, after: str | None = None) -> Flow[list[str]]:
        """Return the first `count` ids (`after` that one) that have been pending and idle for `min_idle_ms`."""
        # Filtered by IDLE on the server: a page full of fresh entries must not hide stale ones behind it.
        first = "-" if after is None else f"({after}"
        command = pack("XPENDING", self._stream, self._group, "IDLE", min_idle_ms, first, "+", count)
        stale: list[str] = yield from self._exchange(self._what("claim_stale"), command, _first_of_each)
        return stale

    def claim(
        self, ids: Sequence[str], min_idle_ms: int
    ) -> Flow[tuple[list[QueueMessage], list[MalformedEntry]]]:
        """Take over those of `ids` that are still pending and idle."""
        command = pack("XCLAIM", self._stream, self._group, self._consumer, min_idle_ms, *ids)
        messages, malformed = yield from self._exchange(self._what("claim_stale"), command, self._claimed)
        self._metrics.claimed(len(messages) + len(malformed))
        return messages, malformed

    def _claimed(self, reply: Any) -> tuple[list[QueueMessage], list[MalformedEntry]]:
        entries = [entry for entry in rows(reply) if entry and entry[1] is not None]
        return parse_entries(entries, self.config.stream_key, self.config.consumer_group)

    def gone(self, ids: Sequence[str]) -> Flow[list[str]]:
        """Return those of `ids` that are no longer in the stream."""
        gone: list[str] = []
        for start in range(0, len(ids), _CHUNK_ROWS):
            command = pack("EVAL", GONE, 1, self._stream, *ids[start : start + _CHUNK_ROWS])
            gone += yield from self._exchange(self._what("claim_stale"), command, _texts)
        return gone

    def has_new(self) -> Flow[bool]:
        """Return whether the stream has entries that were not delivered to the group yet."""
        command = pack("EVAL", HAS_NEW, 1, self._stream, self._group)
        return bool((yield from self._exchange(self._what("look for new messages"), command, whole)))

    def backlog_stats(self) -> Flow[BacklogStats]:
        what = self._what("backlog_stats")
        length = yield from self._exchange(what, pack("XLEN", self._stream), whole)
        # Before XINFO: for a missing stream that says "no such key", while XPENDING says NOGROUP.
        command = pack("XPENDING", self._stream, self._group)
        oldest, by_consumer = yield from self._exchange(what, command, _pending)
        # Both from one reply: a message delivered between two commands would be counted by neither.
        lag, pending = yield from self._exchange(
            what, pack("XINFO", "GROUPS", self._stream), self._lag_and_pending
        )
        command = pack("XPENDING", self._stream, self._group, "-", "+", 1)
        idle_ms = yield from self._exchange(what, command, _idle_ms)
        return BacklogStats(length, lag, pending, by_consumer, oldest, idle_ms)

    def _lag_and_pending(self, reply: Any) -> tuple[int | None, int]:
        group = next((g for g in map(as_mapping, rows(reply)) if g[b"name"] == self._group), {})
        lag = group.get(b"lag")
        return None if lag is None else whole(lag), whole(group.get(b"pending", 0))

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


def _texts(reply: Any) -> list[str]:
    return [text(row) for row in rows(reply)]


def _first_of_each(reply: Any) -> list[str]:
    return [text(row[0]) for row in rows(reply)]


def _pending(reply: Any) -> tuple[str | None, dict[str, int]]:
    _, oldest, _, by_consumer = rows(reply)
    held = {name_of(name): int(count) for name, count in by_consumer or ()}
    return text(oldest) if oldest else None, held


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


def malformed_error(entries: list[MalformedEntry], messages: list[QueueMessage]) -> MalformedEntryError:
    first = entries[0]
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    return MalformedEntryError(
        f"entry {first.id} of stream {first.stream!r} is malformed: {first.reason}{more}. It stays pending: look "
        "at it, then ack(entry) each of .entries to drop it; .messages are the valid ones of the same call",
        entries,
        messages,
    )
