"""Which node a command goes to, and over which connection: of one pool, or of the cluster's node that has the key.

A lane is the way to one node: `get` returns a connection, `release` gives it back, `forget` closes the idle ones.
redis-py's clients differ by kind and version; what differs is here.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import AskError, MovedError, RedisClusterException

from conquiet.flow import Call, Flow

__all__ = ["CLUSTERS", "Route", "has_read_limit", "route_to"]

CLUSTERS = (RedisCluster, AsyncRedisCluster)


@dataclass(slots=True)
class _Topology:
    """What is known of a cluster, by all that use the same client."""

    begun: bool  # the synchronous client has asked for the nodes when it was made
    stale: bool = False


_topologies: WeakKeyDictionary[Any, _Topology] = WeakKeyDictionary()


class _PoolLane:
    """One pool: of a server, of the master that Sentinels name, or of a node of a synchronous cluster client."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        kind: Any = type(pool)
        named, idle_only = _parameters(kind)
        self.get = partial(pool.get_connection, "_") if named else pool.get_connection
        self.release = pool.release
        self.forget = partial(pool.disconnect, inuse_connections=False) if idle_only else pool.disconnect


class _NodeLane:
    """A node of an asyncio cluster client, which keeps its connections itself."""

    def __init__(self, node: Any) -> None:
        self.pool = self._node = node

    async def get(self) -> Any:
        connection = self._node.acquire_connection()
        try:
            await connection.connect()
        except BaseException:  # cancellation included: the place would be taken for ever
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> None:
        if hasattr(self._node, "release"):
            self._node.release(connection)
        else:  # redis-py 5
            self._node._free.append(connection)

    async def forget(self) -> None:
        for connection in tuple(self._node._free):
            await connection.disconnect()


class Route:
    """One pool, whatever the key is."""

    def __init__(self, lane: Any = None) -> None:
        self.only = lane
        """The lane, if there is but one."""

    def lane(self) -> Flow[Any]:
        return self.only
        yield

    def doubt(self) -> None:
        """A node did not answer, or is not what it was: the next command asks first who is."""

    def redirected(self, error: AskError) -> Flow[Any]:
        raise error
        yield


class _ClusterRoute(Route):
    """The nodes of a cluster. Without a key a command goes to any node, whose answer leads to the right one."""

    def __init__(self, cluster: Any, key: bytes | None) -> None:
        super().__init__()
        self._cluster = cluster
        self._key = key
        self._awaits = isinstance(cluster, AsyncRedisCluster)
        self._known = _topologies.setdefault(cluster, _Topology(begun=not self._awaits))

    def lane(self) -> Flow[Any]:
        """The way to the node that has the key, as far as is known."""
        if not self._known.begun:
            yield Call(self._cluster.initialize)
            self._known.begun = True
        if self._known.stale:
            yield from self._look_again()
        if self._key is None:
            return self._lane_to(self._cluster.get_default_node())
        return self._lane_to(self._cluster.get_node_from_key(self._key))

    def doubt(self) -> None:
        self._known.stale = True

    def redirected(self, error: AskError) -> Flow[Any]:
        """The way to the node that an answer MOVED or ASK names."""
        if isinstance(error, MovedError) and self._key is not None:
            self._known.stale = True
        node = self._cluster.get_node(error.host, error.port)
        if node is None:
            yield from self._look_again()
            node = self._cluster.get_node(error.host, error.port)
        if node is None:
            raise RedisClusterException(f"the cluster has no node {error.host}:{error.port}, which it named")
        return self._lane_to(node)

    def _look_again(self) -> Flow[None]:
        yield Call(self._cluster.nodes_manager.initialize)
        self._known.stale = False

    def _lane_to(self, node: Any) -> Any:
        if self._awaits:
            return _NodeLane(node)
        return _PoolLane(self._cluster.get_redis_connection(node).connection_pool)


def route_to(redis: Any, key: str | bytes | None = None) -> Route:
    """The way to whatever has the key, for any client of redis-py."""
    if not isinstance(redis, CLUSTERS):
        return Route(_PoolLane(redis.connection_pool))
    return _ClusterRoute(redis, key.encode() if isinstance(key, str) else key)


@lru_cache
def has_read_limit(connection: Any) -> bool:
    """Whether a synchronous `read_response` takes a time limit: since redis-py 8."""
    return "timeout" in inspect.signature(connection.read_response).parameters


@lru_cache
def _parameters(pool: Any) -> tuple[bool, bool]:
    """Whether `get_connection` needs the name of a command (before redis-py 5.3), and `disconnect` can spare the busy."""
    getting = inspect.signature(pool.get_connection).parameters
    ending = inspect.signature(pool.disconnect).parameters
    named = "command_name" in getting and getting["command_name"].default is inspect.Parameter.empty
    return named, "inuse_connections" in ending
