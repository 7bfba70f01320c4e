"""What a connection of the client's pool is, before a command is sent on it.

A connection may have been closed while it was idle (the server's `timeout`, a restart, a firewall). A command sent on it
would fail, or might have been executed: the only safe time to notice is before it is sent. redis-py looks too, but not in
every version, kind of client and pool (since 8.0 not for asyncio, while maintenance notifications are on).
"""

from __future__ import annotations

import asyncio
import select
from typing import Any

from conquiet.flow import Call, Flow

__all__ = ["connect_attempts", "is_of_another_loop", "renewed"]

# The peer has closed its side, even if something is left to read. Systems that cannot tell that report an idle
# connection on which anything is readable: to open a new one instead is always safe.
_ENDED = getattr(select, "POLLRDHUP", select.POLLIN)


def renewed(connection: Any) -> Flow[None]:
    """Open `connection` anew if its peer has closed it. Nothing has been sent on it yet."""
    if _has_ended(connection):
        yield Call(connection.disconnect, shield=True)
        yield Call(connection.connect)


def is_of_another_loop(connection: Any) -> bool:
    """Whether an asyncio connection was opened in another event loop than the running one."""
    loop = getattr(getattr(connection, "_reader", None), "_loop", None)
    return loop is not None and loop is not asyncio.get_running_loop()


def connect_attempts(pool: Any) -> int:
    """How often the client tries to connect before it gives up; 0 if without end."""
    settings = getattr(pool, "connection_kwargs", {})
    retry = settings.get("retry")
    if retry is None:
        return 2 if settings.get("retry_on_error") or settings.get("retry_on_timeout") else 1
    return max(int(getattr(retry, "_retries", 0)) + 1, 0)


def _has_ended(connection: Any) -> bool:
    sock = getattr(connection, "_sock", None)
    if sock is None:
        writer = getattr(connection, "_writer", None)
        if writer is None:
            return False  # not connected, or of a kind that we do not know: the client's own checks must do
        sock = writer.get_extra_info("socket")
        if sock is None or writer.is_closing():
            return True
    descriptor = sock.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, _ENDED)
    return bool(poll.poll(0))
