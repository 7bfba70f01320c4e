"""Fixtures of the worker's tests: every store, empty, with short retries; and workers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from conquiet.jobs import JobStore, JobWorker, RetrySchedule, open_store
from tests.integration.jobs.background import Running

QUICK = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01)


@pytest.fixture(scope="session")
def jobs_database(postgres_server: PostgresServer) -> Iterator[str]:
    dsn = postgres_server.create_database("worker_tests")
    open_store(dsn).close()
    yield dsn
    postgres_server.drop_database("worker_tests")


@pytest.fixture
def clean_postgres(jobs_database: str) -> str:
    """One database for all tests, because creating one takes longer than most of them; empty and without clients."""
    with psycopg.connect(jobs_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("TRUNCATE conquiet_jobs")
    return jobs_database


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("clean_postgres"))
    return f"sqlite:///{tmp_path / 'jobs.db'}" if request.param == "sqlite" else "memory://"


@pytest.fixture(params=["sqlite", "postgresql"])
def durable_dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The stores that other processes can use too."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("clean_postgres"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def store(dsn: str) -> Iterator[JobStore]:
    with open_store(dsn, retry=QUICK) as opened:
        yield opened


@pytest.fixture
def durable(durable_dsn: str) -> Iterator[JobStore]:
    with open_store(durable_dsn, retry=QUICK) as opened:
        yield opened


@pytest.fixture(params=["sqlite-thread", "postgresql-async", "sqlite-process"])
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[JobStore, str]]:
    """Pairs of a durable store and an isolation; testing all pairs would show no more and take longer."""
    name, isolation = str(request.param).split("-")
    dsn = (
        request.getfixturevalue("clean_postgres") if name == "postgresql" else f"sqlite:///{tmp_path}/jobs.db"
    )
    with open_store(dsn, retry=QUICK) as opened:
        yield opened, isolation


@pytest.fixture
def memory() -> Iterator[JobStore]:
    """For tests where the store does not matter."""
    with open_store("memory://", retry=QUICK) as opened:
        yield opened


@pytest.fixture
def start() -> Iterator[Callable[[JobWorker], Running]]:
    """Run a worker beside the test; it is stopped at the end, with a second stop() if necessary."""
    with ExitStack() as stack:
        yield lambda worker: stack.enter_context(Running(worker))
