"""Fixtures of the store tests. The clauses of the shipped suite's tests become markers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from tests.conformance.sources import MemorySource, PostgresSource, SqliteSource
from tests.integration.queue.variants import LoopThread

KINDS = ("memory", "sqlite", "postgresql")
VARIANTS = ("sync", "async")
NUMBERS = count(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    clauses = getattr(getattr(item, "function", None), "clauses", ())
    if clauses:
        item.add_marker(pytest.mark.clause(*clauses))


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def quick_postgres() -> Iterator[PostgresServer]:
    """A server without fsync, for tests that do not need durability."""
    with PostgresServer(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def moved_database(quick_postgres: PostgresServer) -> Iterator[tuple[str, psycopg.Connection]]:
    """One database, shared by all tests, whose clock the tests move, and a connection to it."""
    dsn = PostgresSource.prepare(quick_postgres.create_database("moved"))
    with psycopg.connect(dsn, autocommit=True) as admin:
        yield dsn, admin


@pytest.fixture(scope="session")
def corners(quick_postgres: PostgresServer) -> Iterator[tuple[str, psycopg.Connection]]:
    dsn = quick_postgres.create_database("corners")
    with psycopg.connect(dsn, autocommit=True) as admin:
        yield dsn, admin


@pytest.fixture
def fresh_dsn(corners: tuple[str, psycopg.Connection]) -> Iterator[str]:
    """The DSN of an empty schema, with the server's real clock. A schema is created faster than a database."""
    dsn, admin = corners
    name = f"corner_{next(NUMBERS)}"
    admin.execute(f"CREATE SCHEMA {name}")
    yield f"{dsn}?application_name={name}&options=" + quote(f"-c search_path={name}")
    admin.execute(f"DROP SCHEMA {name} CASCADE")


def make_source(request: pytest.FixtureRequest) -> Any:
    kind, variant = request.param.split("-")
    loop = request.getfixturevalue("loop_thread") if variant == "async" else None
    if kind == "memory":
        return MemorySource(loop)
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return SqliteSource(folder, loop)
    dsn, admin = request.getfixturevalue("moved_database")
    return PostgresSource(dsn, admin, loop)


@pytest.fixture(params=[f"{kind}-{variant}" for kind in KINDS for variant in VARIANTS])
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every store in both variants, with a clock that stands still until a test moves it."""
    made = make_source(request)
    yield made
    made.close()


@pytest.fixture(params=[f"{kind}-{variant}" for kind in KINDS[1:] for variant in VARIANTS])
def durable(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The stores that outlive the process."""
    made = make_source(request)
    yield made
    made.close()
