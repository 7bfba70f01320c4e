"""Every public opener against DSNs that no server has: it raises only conquiet's errors, without a password in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.errors import ConquietError, QueueConnectionError, ReconcileConfigError
from conquiet.jobs import migration_plan
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, RedisStreamsQueue
from conquiet.reconcile import HttpAdapter
from conquiet.verify import verify
from tests.abuse.openers import ON_JOBS, ON_OUTPUTS, ON_REDIS, ON_REPORTS, Opener, doctor_of_jobs
from tests.abuse.secrets import PASSWORD, logged, unseen

CONFIG = QueueConfig("orders", "billing", "alice")

# Host names that cannot be looked up, each refused by Python with an error that no driver expects; and others.
IMPOSSIBLE = ["a..b", ".x", "x" * 64, "x" * 64 + ".example", "é" * 60, "a\0b", "a%00b", "\ud800", "x" * 5_000]
HOSTS = [
    *IMPOSSIBLE,
    "[::1",
    "[::1]x",
    "127.0.0.1:port",
    "127.0.0.1:99999999",
    "127.0.0.1:1",
    "a b",
    "\u2024",
]
HOSTS += ["127.0.0.1:-1", "a..b,127.0.0.1:1", "a%2e.b", "\x1b[31m"]

# A verification creates its own file beside the named one.
ON_FILES = [opens for opens in (*ON_JOBS, *ON_REPORTS, *ON_OUTPUTS) if opens is not verify]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    unseen(PASSWORD, logged(caplog))


def shown(value: object) -> str:
    return ascii(value)[:24] if isinstance(value, str) else getattr(value, "__name__", str(value))


def refused(opens: Opener, dsn: str) -> None:
    with pytest.raises(ConquietError) as error:
        opens(dsn)
    unseen(PASSWORD, error.value)
    assert str(error.value).replace("\n", "").replace("\t", "").isprintable()  # libpq's have lines and tabs
    assert len(str(error.value)) < 10_000


@pytest.mark.parametrize("opens", [*ON_JOBS, *ON_REPORTS, *ON_OUTPUTS], ids=shown)
@pytest.mark.parametrize("host", HOSTS, ids=shown)
def test_postgresql(opens: Opener, host: str) -> None:
    refused(opens, f"postgresql://app:{PASSWORD}@{host}/jobs")


@pytest.mark.parametrize("opens", [*ON_JOBS, *ON_REPORTS, *ON_OUTPUTS], ids=shown)
def test_postgresql_with_the_host_among_the_options(opens: Opener) -> None:
    refused(opens, f"postgresql://app:{PASSWORD}@/jobs?host=a..b")


@pytest.mark.parametrize("opens", ON_REDIS, ids=shown)
@pytest.mark.parametrize("host", HOSTS, ids=shown)
def test_redis(opens: Opener, host: str) -> None:
    refused(opens, f"redis://app:{PASSWORD}@{host}/0")


@pytest.mark.parametrize("opens", ON_REDIS, ids=shown)
def test_redis_with_other_hostile_urls(opens: Opener) -> None:
    for url in (
        f"redis://?host=a..b&password={PASSWORD}",
        f"redis://app:{PASSWORD}\ud800@127.0.0.1:1/0",
        f"rediss://app:{PASSWORD}@a..b/0",
        f"unix://app:{PASSWORD}@/nowhere/a%00b.sock",
        f"unix://app:{PASSWORD}@/" + "x" * 300,
    ):
        refused(opens, url)


@pytest.mark.parametrize("opens", [*ON_FILES, verify], ids=shown)
def test_a_path_that_no_file_can_have(opens: Opener, folder: Path) -> None:
    for path in ("a\0b.db", "a%00b.db", "\ud800.db"):
        refused(opens, f"sqlite:///{folder}/{path}")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("opens", ON_FILES, ids=shown)
def test_sqlite(opens: Opener, folder: Path) -> None:
    (folder / "folder").mkdir()
    refused(opens, f"sqlite:///{folder}/folder")
    if opens not in (migration_plan, doctor_of_jobs):  # these two report what they would do
        for path in ("x" * 300 + ".db", "x/" * 3_000, "nowhere/x.db"):
            refused(opens, f"sqlite:///{folder}/{path}")
    assert [found.name for found in folder.iterdir()] == ["folder"]


@pytest.mark.parametrize("opens", ON_FILES, ids=shown)
def test_a_file_of_somebody_elses(opens: Opener, folder: Path) -> None:
    (folder / "letter.db").write_bytes(b"a letter to a friend, and no header of SQLite's " * 200)
    refused(opens, f"sqlite:///{folder}/letter.db")
    assert (folder / "letter.db").read_bytes().startswith(b"a letter to a friend")


@pytest.mark.parametrize("host", IMPOSSIBLE[:5], ids=shown)
def test_clients_that_somebody_else_made(host: str) -> None:
    with (
        redis.Redis(host=host, password=PASSWORD, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(QueueConnectionError) as error,
    ):
        RedisStreamsQueue(client, CONFIG)
    unseen(PASSWORD, error.value)

    async def create() -> None:
        client = redis.asyncio.Redis(host=host, password=PASSWORD, retry=AsyncRetry(NoBackoff(), 0))
        try:
            await AsyncRedisStreamsQueue.create(client, CONFIG)
        finally:
            await client.aclose()

    with pytest.raises(QueueConnectionError) as error:
        asyncio.run(create())
    unseen(PASSWORD, error.value)


NO_PLATFORM = [*IMPOSSIBLE, "[::1", "127.0.0.1:port", "127.0.0.1:99999999", "127.0.0.1:-1", "", "/"]
NO_PLATFORM = [host for host in NO_PLATFORM if host != "a%00b"]  # in HTTP this is an ordinary name


@pytest.mark.parametrize("host", [*NO_PLATFORM, f"app:{PASSWORD}@x", f"app:{PASSWORD}/x@x"], ids=shown)
def test_platforms(host: str) -> None:
    with pytest.raises(ReconcileConfigError) as error:
        HttpAdapter(f"https://{host}/v1", token=PASSWORD)
    unseen(PASSWORD, error.value)
