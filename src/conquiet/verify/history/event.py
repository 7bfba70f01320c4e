"""One line of a history, and how the file is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

__all__ = ["PHASES", "Event", "Phase", "read_events"]

Phase = Literal["invoke", "ok", "fail", "unknown"]
PHASES = ("invoke", "ok", "fail", "unknown")


class Event(NamedTuple):
    """A step of an operation; its invoke and its end have the same `op`."""

    phase: Phase
    name: str
    op: str
    id: str | None = None
    holder: str | None = None
    version: int | None = None
    at: float | None = None
    until: float | None = None
    pid: int = 0
    error: str | None = None

    def line(self) -> bytes:
        """The line as it is written to the file. It *begins* with the newline.

        If the process is killed during a write, the kernel may truncate the write at the end of a page. The next line,
        perhaps of another process, must not be appended to that fragment.
        """
        fields = {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}
        return b"\n" + json.dumps(fields, separators=(",", ":")).encode()


def read_events(path: str | os.PathLike[str]) -> Iterator[tuple[int, Event | None]]:
    """Line numbers and events; None for a fragment that a killed process left."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line != b"\n":
                yield number, _parsed(line, number, path)


def _parsed(line: bytes, number: int, path: str | os.PathLike[str]) -> Event | None:
    try:
        fields: Any = json.loads(line)
    except ValueError:
        if line.startswith(b"{"):
            return None
        fields = line
    try:
        return Event(**fields)
    except TypeError:
        raise ValueError(
            f"line {number} of {os.fspath(path)} is not an event of a history: {line!r}"
        ) from None
