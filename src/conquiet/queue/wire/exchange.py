"""One command and its reply over a connection of the client's pool, as a flow for both kinds of client.

The client's `execute_command` is not used: it retries by default, and no command here may be sent twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.errors import (
    AccessProblem,
    GroupLostError,
    QueueAnswerError,
    QueueConfigError,
    QueueConnectionError,
    QueueError,
    QueueOutcomeUnknownError,
    QueueRefusedError,
    redact,
)
from conquiet.flow import Call, Flow
from conquiet.redaction import printable

__all__ = ["TRANSPORT_ERRORS", "Exchange", "translated"]

_GRACE_SECONDS = (
    5.0  # how much longer than BLOCK a blocking read may take before the server is considered lost
)

# Errors that a reply in a wrong format causes in the client's parser and in the functions of `commands`.
_MISSHAPEN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
TRANSPORT_ERRORS = (RedisError, OSError, *_MISSHAPEN)


class Exchange:
    """Sends packed commands and returns their replies. Raises a QueueError with the client's error as its cause."""

    def __init__(self, redis: Any, awaits: bool) -> None:
        # A client of the other kind would block the event loop, or return coroutines instead of replies.
        if not hasattr(redis, "connection_pool") or isinstance(redis, AsyncRedis) is not awaits:
            needed, made_by = (
                ("redis.asyncio.Redis", "connect_async") if awaits else ("redis.Redis", "connect")
            )
            raise QueueConfigError(
                f"a {needed} client is needed here, not {type(redis).__module__}.{type(redis).__qualname__}; "
                f"conquiet.queue.{made_by}(url) makes one"
            )
        self._pool = redis.connection_pool
        self._awaits = awaits
        self._pid = os.getpid()

    def exchange(
        self,
        what: str,
        command: bytes,
        parse: Callable[[Any], Any] | None = None,
        *,
        block_ms: int | None = None,
    ) -> Flow[Any]:
        """Send `command` once, and return its reply parsed by `parse`. `what` names it in errors."""
        if os.getpid() != self._pid:
            raise QueueRefusedError(
                f"{what}: this object was created in process {self._pid} and inherited by its fork {os.getpid()}, "
                "where using its connection would mix up the replies of both: make a new one after the fork"
            )
        try:
            connection = yield Call(self._pool.get_connection)
        except TRANSPORT_ERRORS as error:
            raise translated(what, error) from error
        try:
            try:
                yield Call(connection.send_packed_command, (command,))
                reply = yield self._read(connection, block_ms)
                return reply if parse is None else parse(reply)
            except ResponseError:
                raise  # an ordinary reply: the connection is usable
            except BaseException:
                # A reply may still be on its way: the next command must not read it.
                yield Call(connection.disconnect, shield=True)
                raise
            finally:
                yield Call(self._pool.release, connection, shield=True)
        except TRANSPORT_ERRORS as error:
            raise translated(what, error, sent=True) from error

    def _read(self, connection: Any, block_ms: int | None) -> Call:
        read = partial(connection.read_response, disable_decoding=True)
        if block_ms is None:
            return Call(read)  # under the client's own socket_timeout
        seconds = min(block_ms / 1000, 1e6) + _GRACE_SECONDS
        if self._awaits:
            # redis-py's own limit would return None here, as if the stream were empty, while the real reply is still
            # on its way. Ours cancels the read, and the connection is closed.
            return Call(partial(read, timeout=math.inf), timeout=seconds)
        return Call(partial(read, timeout=seconds))


def translated(what: str, error: Exception, *, sent: bool = False) -> QueueError:
    """Translate one of `TRANSPORT_ERRORS` into a QueueError; `sent` if the command may have reached Redis."""
    what, reason = printable(what), printable(redact(str(error))).rstrip(". ") or type(error).__name__
    if reason.startswith("NOGROUP"):
        return GroupLostError(
            f"{what}: the consumer group is gone ({reason}). It is not recreated automatically, because its "
            "pending entries are lost: find out what removed it, then make a new queue object"
        )
    if isinstance(error, AuthenticationError | BusyLoadingError):  # replies from Redis, which did nothing
        problem = AccessProblem.CREDENTIALS if isinstance(error, AuthenticationError) else None
        return QueueConnectionError(f"{what}: {reason}. Nothing was retried", problem=problem)
    # A host name or a password that cannot be encoded.
    unsendable = isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError)
    if unsendable or isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        kind = QueueOutcomeUnknownError if sent and not unsendable else QueueConnectionError
        return kind(f"{what}: {reason}. Nothing was retried")
    if isinstance(error, _MISSHAPEN):
        return QueueAnswerError(
            f"{what}: the reply is not from Redis ({type(error).__name__}: {reason[:200]}). Whether the command was "
            "done is not known: find out what answers at that address"
        )
    return QueueRefusedError(f"{what}: {reason}", code=reason.partition(" ")[0])
