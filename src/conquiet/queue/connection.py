"""Redis clients for this queue, without the client's own retries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry

from conquiet.errors import AccessProblem, QueueConfigError, QueueConnectionError, redact
from conquiet.queue.address import Address, AddressError
from conquiet.queue.sentinels import async_sentinel_client, sentinel_client
from conquiet.queue.wire.translation import refused_access
from conquiet.redaction import redact_dsn

__all__ = ["connect", "connect_async"]

_SOCKET_SECONDS = 5.0
_FORMS = (
    "expected redis://[user:password@]host:port/db, rediss://… for TLS, unix://path, "
    "redis+sentinel://[user:password@]host:port,…/service[/db] or redis+cluster://[user:password@]host:port,…"
)
# Options of the connections to Sentinels: their own user and password, and what the network asks for.
_OF_SENTINELS = ("socket_", "ssl")


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client for `url` that retries nothing.

    `redis://`, `rediss://` (TLS) and `unix://` lead to one server; `redis+sentinel://host:port,host:port/service` to the
    master that the Sentinels name; `redis+cluster://host:port,host:port` to a cluster, whose client is a
    `redis.RedisCluster` (it asks for the nodes at once). `rediss+sentinel` and `rediss+cluster` use TLS.

    `options` go to redis-py (`ssl_ca_certs`, `socket_timeout`, …; `sentinel_username` and `sentinel_password` to the
    Sentinels). The socket timeout, 5 s by default, never ends a blocking read: the queue waits `block_ms` and 5 s more
    for its answer.
    """
    client: redis.Redis = _connect(url, Retry(NoBackoff(), 0), options, _SYNC)
    return client


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """Like `connect`, for asyncio; nothing is connected before the first command."""
    client: redis.asyncio.Redis = _connect(url, AsyncRetry(NoBackoff(), 0), options, _ASYNC)
    return client


_SYNC = (redis.Redis, sentinel_client, RedisCluster, ClusterNode)
_ASYNC = (redis.asyncio.Redis, async_sentinel_client, AsyncRedisCluster, AsyncClusterNode)


def _connect(url: str, no_retry: Any, options: dict[str, Any], makers: tuple[Any, ...]) -> Any:
    one, by_sentinels, cluster, node = makers
    settings = {"socket_timeout": _SOCKET_SECONDS, "socket_connect_timeout": _SOCKET_SECONDS, **options}
    for name in ("retry", "retry_on_error"):
        settings.pop(name, None)
    try:
        address = Address.parse(url)
        if address.kind == "sentinel":
            return _of_sentinels(address, settings, no_retry, by_sentinels)
        if address.kind == "cluster":
            return _of_cluster(address, settings, no_retry, cluster, node)
        made = one.from_url(url, **settings, retry=no_retry, retry_on_error=[])
        _check_options(made.connection_pool)
        return made
    except (ValueError, TypeError, AttributeError) as error:
        raise QueueConfigError(f"{_told(str(url), error)}; {_FORMS}", problem=AccessProblem.ADDRESS) from None
    except (RedisError, RedisClusterException) as error:  # a cluster is asked for its nodes
        if (refused := refused_access("connect", error)) is not None:
            raise refused from error
        raise QueueConnectionError(
            f"no client can be created for {redact_dsn(url)}: {redact(str(error)).rstrip('. ')}. Nothing was retried"
        ) from error
    except OSError as error:  # an error of this machine, for example no file descriptors left
        raise QueueConnectionError(f"no client can be created: {redact(str(error))}") from error


def _check_options(pool: Any) -> None:
    """Create a connection object without connecting: unknown options fail now, not at the first command."""
    try:
        pool.connection_class(**pool.connection_kwargs)
    except RedisError as error:  # such as a protocol that does not exist
        raise ValueError(str(error)) from error


def _of_sentinels(address: Address, settings: dict[str, Any], no_retry: Any, make: Callable[..., Any]) -> Any:
    given = _parsed(address, settings)
    no_retries = {"retry": no_retry, "retry_on_error": []}
    own = {name: value for name, value in given.items() if name.startswith(_OF_SENTINELS)} | no_retries
    for name in ("username", "password"):
        if (value := given.pop(f"sentinel_{name}", None)) is not None:
            own[name] = value
    made = make(address.hosts, address.service, {**given, **no_retries}, own)
    _check_options(made.connection_pool)
    return made


def _of_cluster(address: Address, settings: dict[str, Any], no_retry: Any, cluster: Any, node: Any) -> Any:
    given = _parsed(address, settings)
    given.pop("db", None)
    # The synchronous client drops options that it does not know.
    of_cluster = inspect.signature(cluster.__init__).parameters
    of_nodes = {name: value for name, value in given.items() if name == "protocol" or name not in of_cluster}
    kind = SSLConnection if of_nodes.pop("ssl", False) else Connection
    _check_options(ConnectionPool(connection_class=kind, **of_nodes))
    if int(redis.__version__.partition(".")[0]) < 6:  # later, `retry` says it
        given["cluster_error_retry_attempts"] = 0
    # A stream is in one slot: it can be used while other parts of the cluster are away.
    return cluster(
        startup_nodes=[node(host, port) for host, port in address.hosts],
        require_full_coverage=False,
        retry=no_retry,
        **given,
    )


def _parsed(address: Address, settings: dict[str, Any]) -> dict[str, Any]:
    """User, password, database and options of the URL, and `settings`, which the URL may change."""
    given: dict[str, Any] = {**settings, **parse_url(address.plain)}  # type: ignore[no-untyped-call]
    for name in ("host", "port"):
        given.pop(name, None)
    if issubclass(given.pop("connection_class", object), SSLConnection):
        given["ssl"] = True
    return given


def _told(url: str, error: Exception) -> str:
    """Describe what is wrong with `url`. Its parts have been looked at first: what else fails are the options."""
    reason = redact(str(error)).rstrip(". ")
    if not isinstance(error, AddressError):
        reason = f"an option, after ? or as an argument, is wrong: {reason}"
    return f"{redact_dsn(url)!r} is not a usable Redis URL ({reason})"
