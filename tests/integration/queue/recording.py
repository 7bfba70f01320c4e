"""Transactions that say what happens to them, and fail where they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis


class Recording:
    """Counts as the `db_factory`. Each event is noted here and, by ECHO, on the server: there MONITOR shows it
    in one order with what the consumer sends.

    `at` maps an event ("begin", "handler", "commit", "rollback") to an exception to raise, or something to do.
    """

    def __init__(self, raw: redis.Redis | None = None, **at: BaseException | Callable[[], object]) -> None:
        self.events: list[str] = []
        self._raw = raw
        self._at = at

    def happens(self, event: str) -> None:
        self.events.append(event)
        if self._raw is not None:
            self._raw.echo(event)
        reaction = self._at.get(event.split()[0])
        if isinstance(reaction, BaseException):
            raise reaction
        if reaction is not None:
            reaction()

    def begin(self) -> RecordedTx:
        self.happens("begin")
        return RecordedTx(self)

    def handle(self, message: Any, tx: Any) -> None:
        """As the handler."""
        assert tx.recording is self
        self.happens(f"handler {message.id}")


class RecordedTx:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def commit(self) -> None:
        self.recording.happens("commit")

    def rollback(self) -> None:
        self.recording.happens("rollback")


class AsyncRecording:
    """The same as coroutines that really suspend."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def begin(self) -> AsyncRecordedTx:
        await asyncio.sleep(0)
        return AsyncRecordedTx(self._recording.begin())


class AsyncRecordedTx:
    def __init__(self, tx: RecordedTx) -> None:
        self._tx = tx
        self.recording = tx.recording

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self._tx.commit()

    async def rollback(self) -> None:
        await asyncio.sleep(0)
        self._tx.rollback()
