"""The registry of back ends by DSN scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from conquiet.checks import checked_int
from conquiet.clock import Clock
from conquiet.errors import AccessProblem, JobConfigError
from conquiet.jobs.backends.protocol import Backend
from conquiet.redaction import redact_dsn

__all__ = ["MAX_CONNECTIONS", "Opener", "backend_at", "names_no_store", "register", "without_driver"]


class Opener(Protocol):
    """Creates the back end for `dsn`. It does not connect; `Backend.open` does."""

    def __call__(self, dsn: str, /, *, clock: Clock | None, awaits: bool) -> Backend:
        """`clock` is the argument of `open_store`. With `awaits`, asyncio drives the flows of the back end, and the
        functions they call may be coroutine functions."""


class _Scheme(NamedTuple):
    opener: Callable[..., Backend]
    form: str
    pooled: bool


MAX_CONNECTIONS = 10  # the default of a store that has connections
_SCHEMES: dict[str, _Scheme] = {}
# The drivers in the URLs of SQLAlchemy. The store uses its own.
_DRIVERS = {
    "postgresql": ("asyncpg", "psycopg", "psycopg2", "psycopg_async"),
    "sqlite": ("aiosqlite", "pysqlite"),
}
_OF_ASYNCPG = ("prepared_statement_cache_size", "prepared_statement_name_func", "async_fallback")


def register(scheme: str, opener: Opener, form: str, *, pooled: bool = False) -> None:
    """Register `opener` for DSNs `scheme://…`. It replaces an opener registered earlier for this scheme.

    `form` shows what such a DSN looks like. The error about an unknown DSN lists the forms of all schemes.
    A `pooled` store has a limited number of connections: its opener takes `max_connections` as well.
    """
    _SCHEMES[scheme] = _Scheme(opener, form, pooled)


def backend_at(
    dsn: str, clock: Clock | None, *, awaits: bool, max_connections: int = MAX_CONNECTIONS
) -> Backend:
    checked_int("max_connections", max_connections, 1, 10_000, error=JobConfigError)
    if not isinstance(dsn, str):
        raise JobConfigError(f"dsn must be a str such as 'sqlite:///jobs.db', not {type(dsn).__name__}")
    scheme, found, _ = dsn.partition("://")
    if scheme not in _SCHEMES and "+" in scheme:
        dsn = without_driver(dsn)
        scheme = dsn.partition("://")[0]
    if not found or scheme not in _SCHEMES:
        raise names_no_store(dsn)
    opener, _, pooled = _SCHEMES[scheme]
    more = {"max_connections": max_connections} if pooled else {}
    return opener(dsn, clock=clock, awaits=awaits, **more)


def without_driver(dsn: str) -> str:
    """Return the DSN of an engine of SQLAlchemy as ours: without its driver, and without what only that driver knows."""
    scheme, _, rest = dsn.partition("://")
    name, _, driver = scheme.partition("+")
    if driver not in _DRIVERS.get(name, ()):
        return dsn
    place, mark, options = rest.partition("?")
    if driver == "asyncpg" and mark:
        kept = [option for option in options.split("&") if option.partition("=")[0] not in _OF_ASYNCPG]
        options = "&".join(f"sslmode={o[4:]}" if o.startswith("ssl=") else o for o in kept)
    return f"{name}://{place}{'?' if options else ''}{options}"


def names_no_store(dsn: str) -> JobConfigError:
    *forms, last = dict.fromkeys(scheme.form for scheme in _SCHEMES.values())
    return JobConfigError(
        f"{redact_dsn(dsn)!r} names no job store: use {', '.join(forms)}, or {last}",
        problem=AccessProblem.ADDRESS,
    )
