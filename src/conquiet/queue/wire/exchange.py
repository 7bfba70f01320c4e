"""One command and its reply over a connection of the client's pool, as a flow for every kind of client.

The client's `execute_command` is not used: it retries by default, and no command here may be sent twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.errors import QueueConfigError, QueueRefusedError
from conquiet.flow import Call, Flow
from conquiet.queue.wire.commands import pack, whole
from conquiet.queue.wire.routes import CLUSTERS, has_read_limit, route_to
from conquiet.queue.wire.sockets import connect_attempts, is_of_another_loop, renewed
from conquiet.queue.wire.translation import TRANSPORT_ERRORS, is_doubtful, translated

__all__ = ["Exchange"]

_GRACE_SECONDS = (
    5.0  # how much longer than BLOCK a blocking read may take before the server is considered lost
)
_REDIRECTIONS = 5
_ASKING = pack("ASKING")


class Exchange:
    """Sends packed commands and returns their replies. Raises a QueueError with the client's error as its cause."""

    def __init__(self, redis: Any, awaits: bool, key: str | bytes | None = None) -> None:
        """`key` is one that all commands are about: in a cluster they go straight to its node."""
        # A client of the other kind would block the event loop, or return coroutines instead of replies.
        known = hasattr(redis, "connection_pool") or isinstance(redis, CLUSTERS)
        if not known or isinstance(redis, AsyncRedis | AsyncRedisCluster) is not awaits:
            needed, made_by = (
                ("redis.asyncio.Redis", "connect_async") if awaits else ("redis.Redis", "connect")
            )
            raise QueueConfigError(
                f"a {needed} client is needed here, not {type(redis).__module__}.{type(redis).__qualname__}; "
                f"conquiet.queue.{made_by}(url) makes one"
            )
        self._route = route_to(redis, key)
        self._awaits = awaits
        self._pid = os.getpid()

    def exchange(
        self,
        what: str,
        command: bytes,
        parse: Callable[[Any], Any] | None = None,
        *,
        block_ms: int | None = None,
        replicas: tuple[int, int] | None = None,
    ) -> Flow[Any]:
        """Send `command` once, and return its reply parsed by `parse`. `what` names it in errors.

        With `replicas`, a number and milliseconds, wait until so many have it, and return the reply and the number that
        has it, or the error instead of a number.
        """
        if os.getpid() != self._pid:
            raise QueueRefusedError(
                f"{what}: this object was created in process {self._pid} and inherited by its fork {os.getpid()}, "
                "where using its connection would mix up the replies of both: make a new one after the fork"
            )
        lane = self._route.only
        commands: tuple[bytes, ...] = (command,) if replicas is None else (command, pack("WAIT", *replicas))
        redirections = 0
        while True:
            sent = False
            try:
                if lane is None:
                    lane = yield from self._route.lane()
                connection = yield Call(lane.get)
                try:
                    if self._awaits and is_of_another_loop(connection):
                        raise _another_loop(what)
                    yield from renewed(connection)
                    sent = True
                    yield Call(connection.send_packed_command, commands)
                    if commands[0] is _ASKING:
                        yield self._read(connection, None)
                    reply = yield self._read(connection, block_ms)
                    value = reply if parse is None else parse(reply)
                    if replicas is not None:
                        held = yield from self._held(connection, replicas)
                        if not isinstance(held, int) or held < replicas[0]:
                            yield from self._left(lane, connection)
                        value = value, held
                    return value
                except (ResponseError, QueueRefusedError) as error:
                    # An ordinary reply, or not our connection: it is usable, unless its server may be no master, or
                    # the reply to WAIT is still to come.
                    if sent and (replicas is not None or is_doubtful(error)):
                        yield Call(connection.disconnect, shield=True)
                    raise
                except BaseException:
                    # A reply may still be on its way: the next command must not read it.
                    yield Call(connection.disconnect, shield=True)
                    raise
                finally:
                    yield Call(lane.release, connection, shield=True)
            except TRANSPORT_ERRORS as error:
                # Not a repetition: the node that answers so has done nothing, and says which one will.
                if isinstance(error, AskError) and redirections < _REDIRECTIONS:
                    redirections += 1
                    lane = yield from self._redirected(what, error)
                    commands = commands[commands[0] is _ASKING :]
                    if not isinstance(error, MovedError):
                        commands = (_ASKING, *commands)
                    continue
                yield from self._replaced(lane, error)
                attempts = 1 if sent or lane is None else connect_attempts(lane.pool)
                raise translated(what, error, sent=sent, attempts=attempts) from error
            except RuntimeError as error:
                if self._awaits and "loop" in str(error):  # asyncio: closed, or not the one of a future
                    raise _another_loop(what) from error
                raise

    def _held(self, connection: Any, replicas: tuple[int, int]) -> Flow[int | Exception]:
        """How many replicas have what was just written, or why that is not known."""
        try:
            return whole((yield self._read(connection, replicas[1])))
        except TRANSPORT_ERRORS as error:
            return error

    def _left(self, lane: Any, connection: Any) -> Flow[None]:
        """Leave a master whose replicas did not confirm: they may follow another one already, of which it is told last."""
        yield Call(connection.disconnect, shield=True)
        yield Call(lane.forget, shield=True)
        self._route.doubt()

    def _redirected(self, what: str, answer: AskError) -> Flow[Any]:
        try:
            return (yield from self._route.redirected(answer))
        except TRANSPORT_ERRORS as error:
            raise translated(what, error) from error

    def _replaced(self, lane: Any, error: Exception) -> Flow[None]:
        """After an error that a failover explains: the next command asks who the master is, and connects to it."""
        if is_doubtful(error):
            yield Call(lane.forget, shield=True)  # the idle connections lead to the same server
        answered = isinstance(error, ResponseError) and not isinstance(error, ClusterDownError)
        if is_doubtful(error) or not answered:
            self._route.doubt()

    def _read(self, connection: Any, block_ms: int | None) -> Call:
        read = partial(connection.read_response, disable_decoding=True)
        if block_ms is None:
            return Call(read)  # under the client's own socket_timeout
        seconds = min(block_ms / 1000, 1e6) + _GRACE_SECONDS
        if self._awaits:
            # redis-py's own limit would return None here, as if the stream were empty, while the real reply is still
            # on its way. Ours cancels the read, and the connection is closed.
            return Call(partial(read, timeout=math.inf), timeout=seconds)
        kind: Any = type(connection)
        if has_read_limit(kind):
            return Call(partial(read, timeout=seconds))
        return Call(_read_within, connection, read, seconds)


def _read_within(connection: Any, read: Callable[[], Any], seconds: float) -> Any:
    if not connection.can_read(timeout=seconds):
        raise RedisTimeoutError("Timeout reading from socket")
    return read()


def _another_loop(what: str) -> QueueRefusedError:
    return QueueRefusedError(
        f"{what}: the connection of this client belongs to another event loop (each asyncio.run makes a new one). "
        "Create the client and the queue in the loop that uses them, or await client.aclose() before the other loop ends"
    )
