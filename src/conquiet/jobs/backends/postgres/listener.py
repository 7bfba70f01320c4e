"""Notifications of PostgreSQL: a channel for each queue, and connections that listen. `notifier.py` sends them.

A NOTIFY is sent only if somebody waits. A session that listens holds shared advisory locks that stand for its queues; whoever
has committed jobs tries to get the exclusive one, and gives it back at once: if it is free, nobody waits. None is missed:

    who waits:      1. LISTEN, take the locks     2. look for jobs that are due     3. wait
    who enqueues:   1. commit the job             2. try the lock, NOTIFY if it is taken

If the lock was free, it was taken after the commit, and the look after that finds the job. If it was taken, either LISTEN has
taken effect and the notification arrives, or it had not, and the look comes later still. Two who try at the same moment
may meet each other there: then one notifies in vain, which does no harm.

A worker does not unlisten each time it is woken, because most are back soon. One that has not waited for a second is busy:
with its next statement it unlistens and gives the locks back.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from conquiet.flow import Call, Signal

__all__ = [
    "UNLISTEN",
    "WAITED",
    "AsyncListener",
    "Listener",
    "channel_of",
    "is_quiet",
    "listen_statement",
    "waiting_place",
]

# The locks of those who wait. Queues share a few, because a server has room for 64 locks per connection.
_WAITING = 0x636F6E71
_WAITING_PLACES = 32
# Somebody waits if the lock cannot be had even for a moment. CASE, because AND has no order.
WAITED = f"""CASE WHEN place IS NULL THEN false
    WHEN pg_try_advisory_lock({_WAITING}, place) THEN NOT pg_advisory_unlock({_WAITING}, place) ELSE true END"""
UNLISTEN = "UNLISTEN *; SELECT pg_advisory_unlock_all()"


@lru_cache(1024)
def channel_of(queue: str) -> str:
    """Return the channel of a queue: a hash, because the name of a channel has at most 63 bytes."""
    return f"conquiet_{hashlib.blake2b(queue.encode(), digest_size=16).hexdigest()}"


def waiting_place(channel: str) -> int:
    """Return the number of the lock that stands for a channel."""
    return int(channel[-4:], 16) % _WAITING_PLACES


def listen_statement(queues: Sequence[str]) -> str:
    """Return the statement that makes a session wait for these queues, and for no others."""
    channels = [channel_of(queue) for queue in queues]
    listens = "".join(f"; LISTEN {channel}" for channel in channels)
    places = sorted({waiting_place(channel) for channel in channels})
    locks = "".join(f"; SELECT pg_advisory_lock_shared({_WAITING}, {place})" for place in places)
    return f"{UNLISTEN}{listens}{locks}"


def is_quiet(connection: Any) -> bool:
    """Return whether an idle connection has nothing to read. If it has, the server has usually closed it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


class Listener:
    """Waits on the calling thread. The wake-up socket lives as long as the listener, because a signal may be late."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.queues: tuple[str, ...] = ()  # to whose channels it listens
        self.since = 0.0  # when it was waited on last
        self.notified = 0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._reader.setblocking(False)

    def wait(self, seconds: float, stop: Signal) -> Call:
        """Wait for a notification or for `stop`, at most `seconds`."""
        return Call(self._wait, seconds, stop)

    def _wait(self, seconds: float, stop: Signal) -> None:
        poll = select.poll()  # not select(), which is limited to the first 1,024 descriptors
        poll.register(self.connection.fileno(), select.POLLIN)
        poll.register(self._reader, select.POLLIN)
        stop.add_waker(self._wake)
        try:
            if not stop.is_set():
                poll.poll(max(seconds, 0.0) * 1000)
        finally:
            stop.remove_waker(self._wake)
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            pass
        self.notified += sum(1 for _ in self.connection.notifies(timeout=0))

    def unlisten(self) -> Call:
        """Listen no more, and forget what has arrived."""
        self.queues = ()
        return Call(self._unlisten, shield=True)

    def _unlisten(self) -> None:
        self.connection.execute(UNLISTEN)
        for _ in self.connection.notifies(timeout=0):
            pass

    def _wake(self) -> None:
        try:
            self._writer.send(b"x")
        except OSError:
            pass  # already full of wake-ups, or closed: nothing waits here any more

    def close(self) -> Any:
        self._reader.close()
        self._writer.close()
        return self.connection.close()


class AsyncListener(Listener):
    """A `Listener` for asyncio."""

    def wait(self, seconds: float, stop: Signal) -> Call:
        return Call(self._wait_async, seconds, stop)

    async def _wait_async(self, seconds: float, stop: Signal) -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        stop.add_waker(wake)
        loop.add_reader(self.connection.fileno(), woken.set)
        try:
            if not stop.is_set():
                async with asyncio.timeout(seconds):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            stop.remove_waker(wake)
            loop.remove_reader(self.connection.fileno())
        async for _ in self.connection.notifies(timeout=0):
            self.notified += 1

    def unlisten(self) -> Call:
        self.queues = ()
        return Call(self._unlisten_async, shield=True)

    async def _unlisten_async(self) -> None:
        await self.connection.execute(UNLISTEN)
        async for _ in self.connection.notifies(timeout=0):
            pass
