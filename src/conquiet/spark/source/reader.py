"""Reads ranges of a stream as Arrow record batches, on executors.

The reply is parsed here, not by the Redis client: for entries of the usual form a single `split` is twenty times as
fast as parsing value by value.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from redis.exceptions import AskError, MovedError, ResponseError

from conquiet.flow import run
from conquiet.queue import connect
from conquiet.queue.wire import TRANSPORT_ERRORS, pack, route_to, translated

__all__ = ["BlockReader", "parse_range"]

_SOCKET_SECONDS = 60.0
_RECEIVE_BYTES = 1 << 20
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, the last one of timestamps in Python and SQL
_PARTS = 8  # lines of the reply for an entry with one field: *2 $n id *2 $4 data $n <payload>

T = TypeVar("T")


class BlockReader:
    """One connection to one stream. Errors are raised as `QueueError`."""

    def __init__(self, url: str, stream: str, schema: StructType) -> None:
        self._stream = stream
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._redis = connect(url, socket_timeout=_SOCKET_SECONDS)
        self._route = route_to(self._redis, stream)
        self._lane: Any = None
        self._connection: Any = None

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._redis.close()

    def read(self, lo: str, hi: str, count: int | None = None) -> pa.RecordBatch:
        """Return the entries from `lo` to `hi`, or the first `count` of them."""
        limit = () if count is None else ("COUNT", count)
        return self._ask(self._record_batch, "XRANGE", self._stream, lo, hi, *limit)

    def write_down(self, key: str, field: str, value: int) -> None:
        self._ask(bytes, "HSET", key, field, value)

    def _record_batch(self, reply: bytes) -> pa.RecordBatch:
        ids, data = parse_range(reply)
        arrays = [pa.array(ids, pa.binary()).cast(pa.string()), _text(data), _enqueued_at(ids)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _ask(self, parse: Callable[[bytes], T], *command: str | int) -> T:
        """Send the command and return its raw reply, without the last line end, parsed by `parse`."""
        # The echo marks the end of the reply, which cannot contain the token: it is new and random.
        token = secrets.token_hex(16).encode()
        mark = b"$32\r\n" + token + b"\r\n"
        commands = (pack(*command), pack("ECHO", token))
        try:
            if self._connection is None:
                self._go(run(self._route.lane()))
            reply = self._sent(commands, mark)
            if (error := _redirection(reply)) is not None:  # of a cluster: this node has done nothing
                self._go(run(self._route.redirected(error)))
                asked = not isinstance(error, MovedError)
                reply = self._sent((pack("ASKING"), *commands) if asked else commands, mark)
                reply = reply.removeprefix(b"+OK\r\n") if asked else reply
            if reply.startswith(b"-"):
                raise ResponseError(reply[1:].decode(errors="replace").strip())
            return parse(reply[:-2])
        except TRANSPORT_ERRORS as error:
            raise translated(f"{command[0]} of stream {self._stream!r}", error) from error

    def _go(self, lane: Any) -> None:
        self._leave()
        self._lane, self._connection = lane, lane.get()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()  # also in the middle of a reply
            self._lane.release(self._connection)
            self._connection = None

    def _sent(self, commands: tuple[bytes, ...], mark: bytes) -> bytes:
        self._connection.send_packed_command(commands)
        return self._receive(mark)

    def _receive(self, mark: bytes) -> bytes:
        received = bytearray()
        while not received.endswith(mark):
            chunk = self._connection._sock.recv(_RECEIVE_BYTES)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            received += chunk
        return bytes(received[: -len(mark)])


def _redirection(reply: bytes) -> AskError | None:
    kind, _, where = reply[1:80].decode(errors="replace").strip().partition(" ")
    if reply.startswith((b"-MOVED ", b"-ASK ")):
        return MovedError(where) if kind == "MOVED" else AskError(where)
    return None


def parse_range(reply: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Return the ids and, for entries with exactly one field `data`, its values."""
    lines = reply.split(b"\r\n")
    count = int(lines[0][1:])
    # An entry takes at least eight lines, and more if it has more fields or if its values contain line ends. With
    # eight lines for each entry on average, every entry has exactly one field.
    if len(lines) == 1 + _PARTS * count:
        names, values = lines[6::_PARTS], lines[8::_PARTS]
        if names.count(b"data") == count:
            return lines[3::_PARTS], values  # type: ignore[return-value]
    return _parse_slowly(reply, count)


def _parse_slowly(reply: bytes, count: int) -> tuple[list[bytes], list[bytes | None]]:
    position = reply.find(b"\r\n") + 2
    if count == 0:
        return [], []

    def line() -> int:
        nonlocal position
        end = reply.find(b"\r\n", position)
        number = int(reply[position + 1 : end if end >= 0 else len(reply)])
        position = end + 2
        return number

    def bulk() -> bytes:
        nonlocal position
        length = line()
        position += length + 2
        return reply[position - length - 2 : position - 2]

    ids: list[bytes] = []
    data: list[bytes | None] = []
    for _ in range(count):
        line()
        ids.append(bulk())
        fields = [bulk() for _ in range(line())]
        data.append(fields[1] if len(fields) == 2 and fields[0] == b"data" else None)
    return ids, data


def _text(data: Sequence[bytes | None]) -> pa.Array:
    """Convert to text; null where the bytes are not UTF-8, and therefore not JSON."""
    try:
        return pa.array(data, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in data], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _enqueued_at(ids: Sequence[bytes]) -> pa.Array:
    """Return the time in each id, in milliseconds of the server's clock; null if it is too late for a timestamp."""
    millis: list[int | None] = [int(one.partition(b"-")[0]) for one in ids]
    if ids and millis[-1] > _LAST_MS:  # type: ignore[operator]
        # A producer added an entry with such an id, and the server continues from it. Ids are in order, so only the
        # last one needs a look.
        millis = [one if one <= _LAST_MS else None for one in millis]  # type: ignore[operator]
    return pc.multiply(pa.array(millis, pa.int64()), 1000).cast(pa.timestamp("us", tz="UTC"))
