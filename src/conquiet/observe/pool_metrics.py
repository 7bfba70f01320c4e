"""A Prometheus gauge of the database connections that are in use."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, WeakValueDictionary

from conquiet.observe.failsafe import read_at_scrape, registered, safely

__all__ = ["ConnectionsInUse"]


class ConnectionsInUse:
    """The connections that were taken from a pool. One that is closed without having been given back is not in use."""

    def __init__(self) -> None:
        self._taken: WeakValueDictionary[int, Any] = WeakValueDictionary()
        _POOLS.add(self)
        safely(_family)

    def take(self, connection: Any) -> None:
        self._taken[id(connection)] = connection

    def give_back(self, connection: Any) -> None:
        self._taken.pop(id(connection), None)

    def clear(self) -> None:
        self._taken.clear()

    @property
    def number(self) -> int:
        taken = [reference() for reference in self._taken.valuerefs()]
        return sum(connection is not None and not connection.closed for connection in taken)


_POOLS: WeakSet[ConnectionsInUse] = WeakSet()


def _number() -> int:
    return sum(pool.number for pool in tuple(_POOLS))


@registered
def _family(prometheus: Any) -> Any:
    gauge = prometheus.Gauge(
        "conquiet_jobs_connections_in_use",
        "Connections to PostgreSQL on which a statement or a handler's transaction runs",
        multiprocess_mode="livesum",
    )
    read_at_scrape(gauge, _number)
    return gauge
