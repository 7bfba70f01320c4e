"""A client for the master of a service that Sentinels watch; `connection.py` reads the URL.

It asks the Sentinels whenever it opens a connection. After a failover the call that fails raises; the connection is
closed, and the next call asks again and reaches the new master.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from conquiet.errors import redact
from conquiet.flow import Call, Flow, run, run_async

__all__ = ["async_sentinel_client", "sentinel_client"]

Places = tuple[tuple[str, int], ...]


def sentinel_client(
    places: Places, service: str, settings: dict[str, Any], own: dict[str, Any]
) -> redis.Redis:
    """A client of the master; `own` are the settings for the connections to the Sentinels."""
    known = _Sentinels(places, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    pool: Any = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        service, known, redis_connect_func=_greet, **settings
    )
    client = redis.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


def async_sentinel_client(
    places: Places, service: str, settings: dict[str, Any], own: dict[str, Any]
) -> redis.asyncio.Redis:
    known = _AsyncSentinels(places, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    pool: Any = AsyncSentinelPool(  # type: ignore[no-untyped-call]
        service, known, redis_connect_func=_greet_async, **settings
    )
    client = redis.asyncio.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


class _Sentinels(Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        return run(_master(self, service_name))


class _AsyncSentinels(AsyncSentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        return await run_async(_master(self, service_name))


def _master(known: Any, service: str) -> Flow[tuple[str, int]]:
    """The address that the first Sentinel names which knows a master that is up."""
    said = []
    refusals: list[AuthenticationError] = []
    for sentinel in tuple(known.sentinels):
        try:
            state = (yield from _asked(sentinel)).get(service)
        except (RedisError, OSError) as error:
            if isinstance(error, AuthenticationError):
                refusals.append(error)
            said.append(f"{_place(sentinel)}: {redact(str(error))}")
            continue
        if state is not None and known.check_master_state(state, service):
            # The next look begins with the one that has answered.
            known.sentinels.remove(sentinel)
            known.sentinels.insert(0, sentinel)
            return state["ip"], state["port"]
        said.append(f"{_place(sentinel)} {'does not know it' if state is None else 'says that it is down'}")
    if len(refusals) == len(said):
        raise AuthenticationError(
            f"the Sentinels refuse the user or the password ({'; '.join(said)}): theirs are the options "
            "sentinel_username and sentinel_password"
        )
    raise MasterNotFoundError(f"no Sentinel names a master of service {service!r} ({'; '.join(said)})")


def _asked(sentinel: Any) -> Flow[Any]:
    try:
        return (yield Call(sentinel.sentinel_masters))
    finally:
        # Asked once per connection to the master, so none is kept.
        yield Call(sentinel.connection_pool.disconnect, shield=True)


def _place(sentinel: Any) -> str:
    settings = sentinel.connection_pool.connection_kwargs
    return f"{settings['host']}:{settings['port']}"


def _greeted(connection: Any) -> Flow[None]:
    """A Sentinel may not know yet that its master was demoted: the server itself is asked, too."""
    yield Call(connection.on_connect)
    try:
        yield Call(partial(connection.send_command, "ROLE"))
        role = (yield Call(connection.read_response))[0]
    except NoPermissionError:
        return  # a user without this right learns it from the first write
    if role not in (b"master", "master"):
        raise RedisConnectionError(f"{connection.host}:{connection.port} is not the master any more")


def _greet(connection: Any) -> None:
    run(_greeted(connection))


async def _greet_async(connection: Any) -> None:
    await run_async(_greeted(connection))
