"""Transactions that record what happens to them, and fail where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis


class Recording:
    """A `db_factory`. Each event is recorded here and, with ECHO, on the server: there MONITOR shows it in order with
    the commands of the consumer.

    `at` maps an event ("begin", "handler", "commit", "rollback") to an exception to raise, or a function to call.
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
        """The handler."""
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
    """The same with coroutines that really suspend."""

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
