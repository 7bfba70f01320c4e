"""Fixtures: real servers for the tests, started once per run and listed in its report.

redis_url       a flushed Redis; the test runs once for every Redis and Valkey on this machine
postgres_dsn    an empty PostgreSQL database for one test
redis_server, postgres_server
                the shared servers behind them. A test that kills or pauses a server starts its own.
replicated, redis_cluster, private_cluster
                several servers as one service (tests/topologies.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from conquiet.embedded import PostgresServer, RedisServer, ServerBinary
from conquiet.embedded.binaries import available_redis_binaries, find_postgres, find_redis
from conquiet.errors import ConquietError
from tests.topologies import ClusterOfServers, Replicated

_ran: list[str] = []
_numbers = count(1)


def _redis_choices() -> list[ServerBinary | ConquietError]:
    """All that are found. If there is none, the reason: a test that needs one must fail, not disappear."""
    try:
        return [*available_redis_binaries()] or [find_redis()]
    except ConquietError as error:
        return [error]


def _name(choice: ServerBinary | ConquietError) -> str:
    return f"{choice.flavour}-{choice.version}" if isinstance(choice, ServerBinary) else "none"


def pytest_report_header() -> list[str]:
    found = [
        choice.describe() if isinstance(choice, ServerBinary) else str(choice) for choice in _redis_choices()
    ]
    try:
        found.append(find_postgres().describe())
    except ConquietError as error:
        found.append(str(error))
    return [f"servers: {'; '.join(found)}"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["servers"] = _ran


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _ran.extend(getattr(node, "workeroutput", {}).get("servers", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for server in sorted(set(_ran)):
        terminalreporter.write_line(f"ran against {server}")


@pytest.fixture(scope="session", params=_redis_choices(), ids=_name)
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    if isinstance(request.param, ConquietError):
        raise request.param
    with RedisServer(binary=request.param) as server:
        _ran.append(server.describe())
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        _ran.append(server.describe())
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture
def replicated(redis_server: RedisServer) -> Iterator[Replicated]:
    """A master, a replica and three Sentinels of the test's own."""
    with Replicated(redis_server.binary) as service:
        yield service


@pytest.fixture(scope="session")
def _shared_cluster(redis_server: RedisServer) -> Iterator[ClusterOfServers]:
    with ClusterOfServers(redis_server.binary) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_shared_cluster: ClusterOfServers) -> ClusterOfServers:
    """Three nodes without replicas, flushed; shared."""
    _shared_cluster.flush()
    return _shared_cluster


@pytest.fixture
def private_cluster(redis_server: RedisServer) -> Iterator[ClusterOfServers]:
    """Three nodes with a replica each, of the test's own."""
    with ClusterOfServers(redis_server.binary, replicas=True) as cluster:
        yield cluster
