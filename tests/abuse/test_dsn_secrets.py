"""Passwords of DSNs are never shown, whatever is wrong with the DSN and whichever library raises the error."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.embedded import PostgresServer, RedisServer
from conquiet.errors import ConquietError, StoreUnavailableError
from conquiet.jobs import JobWorker, migrate, migration_plan, open_async_store, open_store
from conquiet.queue import (
    AsyncRedisStreamsQueue,
    QueueAccessError,
    QueueConfig,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from conquiet.reconcile import open_database
from conquiet.reconcile.spark import RetryJobs
from conquiet.redaction import impossible_text
from conquiet.spark.sink.options import parsed
from conquiet.spark.source.options import SourceOptions
from tests.abuse.secrets import PASSWORD, broken_dsns, logged, unseen

CONFIG = QueueConfig("orders", "billing", "alice")


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything logged by any library, from DEBUG on."""
    caplog.set_level(logging.DEBUG)
    yield
    unseen(PASSWORD, logged(caplog))


@pytest.fixture(scope="module")
def locked_redis() -> Iterator[str]:
    """The address of a Redis that requires another password."""
    with RedisServer(config={"requirepass": "wrong"}) as server:
        yield f"{server.host}:{server.port}"


def failures(dsns: Iterator[str], attempt: Callable[[str], object]) -> list[BaseException]:
    """The error for each DSN; every attempt must fail."""
    found: list[BaseException] = []
    for dsn in dsns:
        try:
            attempt(dsn)
        except Exception as error:
            unseen(PASSWORD, error)
            found.append(error)
        else:
            raise AssertionError(f"{dsn} was accepted")
    return found


@pytest.mark.parametrize(
    "attempt",
    [open_store, lambda dsn: asyncio.run(open_async_store(dsn)), migrate, migration_plan],
    ids=["open_store", "open_async_store", "migrate", "migration_plan"],
)
def test_job_stores(postgres_server: PostgresServer, attempt: Callable[[str], object]) -> None:
    place = f"{postgres_server.host}:{postgres_server.port}"
    for dsns in (broken_dsns("postgresql", place, "jobs"), broken_dsns("mysql", place, "jobs")):
        assert {type(error).__module__ for error in failures(dsns, attempt)} == {"conquiet.errors"}
    unreachable = failures(broken_dsns("postgresql", place, "x"), attempt)
    assert sum("password authentication failed" in str(error) for error in unreachable) >= 3
    assert all(len(str(error).splitlines()) <= 4 for error in unreachable)


def test_sqlite_stores(folder: Path) -> None:
    refused = failures(broken_dsns("sqlite", "", "jobs.db"), open_store)
    assert {type(error).__module__ for error in refused} == {"conquiet.errors"}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_redis(locked_redis: str, scheme: str, way: str) -> None:
    # A server without TLS does not answer a handshake that it does not know.
    patience = {"socket_timeout": 0.02, "socket_connect_timeout": 0.02} if scheme == "rediss" else {}

    def attempt(url: str) -> None:
        with connect(url, **patience) as client:
            RedisStreamsQueue(client, CONFIG)

    async def attempt_async(url: str) -> None:
        client = connect_async(url, **patience)
        try:
            await AsyncRedisStreamsQueue.create(client, CONFIG)
        finally:
            await client.aclose()

    tried = attempt if way == "sync" else lambda url: asyncio.run(attempt_async(url))
    found = failures(broken_dsns(scheme, locked_redis, "0"), tried)
    assert {type(error).__module__ for error in found} == {"conquiet.errors"}
    if scheme == "redis":
        refused = [error for error in found if isinstance(error, QueueAccessError)]
        assert sum("invalid username-password pair" in str(error) for error in refused) >= 3


def test_clients_and_stores_do_not_show_it(postgres_server: PostgresServer, locked_redis: str) -> None:
    url = f"redis://app:{PASSWORD}@{locked_redis}/0"
    with connect(url) as client:
        unseen(PASSWORD, client, connect_async(url))
    password = postgres_server.dsn.split(":")[2].partition("@")[0]
    with open_store(postgres_server.dsn) as store:
        unseen(password, store, store.operations, store.capabilities, Conquiet(postgres_server.dsn))
        unseen(password, JobWorker(store, print, queues="q"))
    with pytest.raises(ConquietError) as closed:
        store.list()
    unseen(password, closed.value)


def test_a_server_that_goes_away_does_not_bring_it_to_light() -> None:
    with PostgresServer(fsync=False) as server:
        password = server.dsn.split(":")[2].partition("@")[0]
        with open_store(server.dsn) as store:
            server.stop()
            with pytest.raises(StoreUnavailableError) as failed:
                store.enqueue("q", {})
            unseen(password, failed.value)


@pytest.mark.parametrize("scheme", ["postgresql", "sqlite", "mysql"])
def test_databases_of_reports(postgres_server: PostgresServer, scheme: str) -> None:
    place = "" if scheme == "sqlite" else f"{postgres_server.host}:{postgres_server.port}"
    found = failures(broken_dsns(scheme, place, "reports"), open_database)
    assert {type(error).__module__ for error in found} == {"conquiet.errors"}


def test_options_of_spark_sources_and_sinks() -> None:
    for dsn in broken_dsns("postgresql", "db", "jobs"):
        options: dict[str, Any] = {"url": dsn, "stream": "s", "group": "g", "consumer": "c"}
        unseen(PASSWORD, RetryJobs(dsn))
        unseen(PASSWORD, made_or_refused(SourceOptions.parse, options))
        for place in ({"url": dsn, "stream": "s"}, {"dsn": dsn, "queue": "q"}):
            unseen(PASSWORD, made_or_refused(partial(parsed, streaming=True), place))
        for wrong in (
            {"dsn": dsn},
            {"url": dsn},
            {"url": dsn, "dsn": dsn},
            {"dsn": dsn, "queue": "q", "x": "1"},
        ):
            with pytest.raises(ConquietError) as refused:
                parsed(wrong, streaming=True)
            unseen(PASSWORD, refused.value)
        for name in ("partitions", "heartbeat", "failOnDataLoss", "nonsense"):
            with pytest.raises(ConquietError) as refused:
                SourceOptions.parse({**options, name: "x"})
            unseen(PASSWORD, refused.value)
    for dsn in broken_dsns("sqlite", "", "jobs.db"):
        unseen(PASSWORD, made_or_refused(partial(parsed, streaming=True), {"dsn": dsn, "queue": "q"}))


def made_or_refused(make: Callable[[dict[str, Any]], object], options: dict[str, Any]) -> object:
    try:
        return make(options)
    except ConquietError as error:
        return error


COMMANDS = [
    ("enqueue", "q", "{}", "--dsn"),
    ("jobs", "list", "--dsn"),
    ("migrate", "--dsn"),
    ("doctor", "--dsn"),
    ("stream", "stats", "orders", "--redis-url"),
    ("enqueue", "q", "{}", "--stream", "--redis-url"),
]


def test_the_command_even_when_it_shows_where_an_error_comes_from(
    postgres_server: PostgresServer, locked_redis: str
) -> None:
    """A sample: each verb gets a different broken DSN, by flag or by variable."""
    postgres = f"{postgres_server.host}:{postgres_server.port}"
    # A command line or a variable cannot hold the others.
    database = [dsn for dsn in broken_dsns("postgresql", postgres, "jobs") if not impossible_text(dsn)]
    redis = [dsn for dsn in broken_dsns("redis", locked_redis, "0") if not impossible_text(dsn)]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    for number, (*words, flag) in enumerate(COMMANDS):
        dsns = database if flag == "--dsn" else redis
        dsn = dsns[number * 3 % len(dsns)]
        by_variable = number % 2 == 1
        variable = {"CONQUIET_DSN" if flag == "--dsn" else "CONQUIET_REDIS_URL": dsn} if by_variable else {}
        done = subprocess.run(
            [sys.executable, "-m", "conquiet", *words, *([] if by_variable else [flag, dsn]), "--debug"],
            env=environment | variable,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode in (1, 2, 3), done.stderr
        unseen(PASSWORD, done.stdout, done.stderr)


def test_the_canary_would_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The test of the test: the canary is found, also in a chain and in a log."""
    logging.getLogger("conquiet").debug("a line of the log, %s", "with a canary")
    with pytest.raises(AssertionError, match="seen"):
        unseen("with a canary", logged(caplog))
    try:
        try:
            raise ValueError(PASSWORD)
        except ValueError as error:
            raise RuntimeError("no more") from error
    except RuntimeError as error:
        with pytest.raises(AssertionError, match="seen"):
            unseen(PASSWORD, error)
        with pytest.raises(AssertionError, match="seen"):
            unseen(PASSWORD, {"a": PASSWORD})
