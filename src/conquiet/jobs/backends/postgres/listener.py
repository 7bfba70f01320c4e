"""A listening PostgreSQL connection, and waiting for it and for a signal at the same time."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

from conquiet.flow import Call, Signal

__all__ = ["AsyncListener", "Listener", "is_quiet"]


def is_quiet(connection: Any) -> bool:
    """Return whether an idle connection has nothing to read. If it has, the server has usually closed it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


class Listener:
    """Waits on the calling thread. The wake-up socket lives as long as the listener, because a signal may be late."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
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
            pass
