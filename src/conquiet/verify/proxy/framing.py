"""Finds where commands and replies begin and end in the protocols of Redis and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

__all__ = ["Command", "Framing", "PostgresFraming", "RedisFraming"]


class Command(NamedTuple):
    """All bytes of one request, its text (for SQL with the values), and whether a reply follows."""

    data: bytes
    label: str
    answered: bool = True


class Framing(Protocol):
    """The framing of one connection."""

    def commands(self, data: bytes) -> Iterator[Command]:
        """The commands that these bytes complete."""
        ...

    def replies(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """The pieces of replies that these bytes complete, and whether each is the last of its reply."""
        ...


class RedisFraming:
    """RESP: a request is an array of bulk strings, a reply any value."""

    def __init__(self) -> None:
        self._sent = b""
        self._received = b""

    def commands(self, data: bytes) -> Iterator[Command]:
        self._sent += data
        while (end := _value_end(self._sent, 0)) is not None:
            request, self._sent = self._sent[:end], self._sent[end:]
            words = request.split(b"\r\n")[2:6:2]  # the command and its first argument
            yield Command(request, b" ".join(words).decode(errors="replace"))

    def replies(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        self._received += data
        while (end := _value_end(self._received, 0)) is not None:
            reply, self._received = self._received[:end], self._received[end:]
            yield reply, True


def _value_end(data: bytes, start: int) -> int | None:
    """The end of the value that begins at `start`; None if it is incomplete."""
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, rest, end = data[start : start + 1], data[start + 1 : line_end], line_end + 2
    if kind in b"$=!":
        end += int(rest) + 2 if int(rest) >= 0 else 0  # -1: null
        return end if end <= len(data) else None
    if kind in b"*~>%|":
        for _ in range(max(int(rest), 0) * (2 if kind in b"%|" else 1)):
            found = _value_end(data, end)
            if found is None:
                return None
            end = found
    return end


class PostgresFraming:
    """Protocol 3, without TLS: a request ends with Query or Sync, a reply with ReadyForQuery."""

    def __init__(self) -> None:
        self._sent = b""
        self._received = b""
        self._request = b""
        self._label = "startup"
        self._started = False
        self._statements: dict[bytes, str] = {}  # prepared statements, by name

    def commands(self, data: bytes) -> Iterator[Command]:
        self._sent += data
        if not self._started:
            if len(self._sent) < 4 or len(self._sent) < (size := int.from_bytes(self._sent[:4], "big")):
                return
            self._started = True
            first, self._sent = self._sent[:size], self._sent[size:]
            yield Command(first, "startup")
        while message := self._message(self._sent):
            self._sent = self._sent[len(message) :]
            kind, body = message[:1], message[5:]
            self._request += message
            if kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                self._label = self._statements[name] = text.decode(errors="replace")
            elif kind == b"B":
                _, name, values = body.split(b"\0", 2)
                self._label = f"{self._statements.get(name, '')}\n{values.decode(errors='replace')}"
            elif kind == b"Q":
                self._label = body.rstrip(b"\0").decode(errors="replace")
            if kind in b"QSpXdc":
                request, self._request = self._request, b""
                yield Command(request, self._label if kind in b"QS" else "", kind in b"QS")

    def replies(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        self._received += data
        while message := self._message(self._received):
            self._received = self._received[len(message) :]
            yield message, message[:1] == b"Z"

    @staticmethod
    def _message(data: bytes) -> bytes:
        """The first message if it is complete, else empty."""
        if len(data) < 5 or len(data) < (size := 1 + int.from_bytes(data[1:5], "big")):
            return b""
        return data[:size]
