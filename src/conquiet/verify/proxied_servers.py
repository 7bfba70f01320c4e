"""Connections to a server through a proxy that can cut them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from conquiet.verify.findings import SkippedError
from conquiet.verify.proxy import Address, PostgresFraming, Proxy, RedisFraming

__all__ = ["through_postgres", "through_redis"]

_TLS = "the connection is encrypted, and the proxy that would cut it cannot read TLS"
_KEPT_BY_REDIS = ("db", "username", "password", "protocol", "client_name")
# The address, and options that are only valid with it.
_LEFT_TO_POSTGRES = (
    "host",
    "hostaddr",
    "port",
    "passfile",
    "service",
    "target_session_attrs",
    "load_balance_hosts",
)


@contextmanager
def through_postgres(dsn: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy, and the DSN of the same database through it."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    with psycopg.connect(dsn, connect_timeout=10) as connection:
        # Asked, not read from the DSN: the environment, password files and several hosts also count.
        info = connection.info
        if connection.pgconn.ssl_in_use:
            raise SkippedError(
                f"{_TLS}; with sslmode=disable, on a network that you trust, the check can run"
            )
        host, port = info.hostaddr or info.host, info.port
        known = {"user": info.user, "password": info.password, "dbname": info.dbname}
    target: Address = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
    settings = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    for name in _LEFT_TO_POSTGRES:
        settings.pop(name, None)
    with Proxy(target, PostgresFraming) as proxy:
        settings |= {name: value for name, value in known.items() if value}
        settings |= {
            "host": "127.0.0.1",
            "port": str(proxy.port),
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        yield (
            proxy,
            "postgresql://?"
            + "&".join(f"{name}={quote(value, safe='')}" for name, value in settings.items()),
        )


@contextmanager
def through_redis(redis: Any) -> Iterator[tuple[Proxy, Any]]:
    """A proxy, and another client of the same server through it."""
    from redis.connection import SSLConnection, UnixDomainSocketConnection

    from conquiet.queue import connect  # here: a job store is verified without redis-py

    pool = redis.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        raise SkippedError(f"{_TLS}; with redis://, on a network that you trust, the check can run")
    settings = pool.connection_kwargs
    target: Address = (settings.get("host", "localhost"), settings.get("port", 6379))
    if issubclass(pool.connection_class, UnixDomainSocketConnection):
        target = settings["path"]
    kept = {name: settings[name] for name in _KEPT_BY_REDIS if settings.get(name) is not None}
    with (
        Proxy(target, RedisFraming) as proxy,
        connect(f"redis://127.0.0.1:{proxy.port}", **kept) as behind,
    ):
        yield proxy, behind
