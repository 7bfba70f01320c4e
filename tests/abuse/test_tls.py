"""TLS to Redis and PostgreSQL: the options are applied, and a wrong certificate is refused.

If the server was built with TLS (those of a distribution are), the tests use the server's own. If not (those in the
wheels are not), a proxy in front of it speaks TLS, as in a cluster.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import text

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.embedded.ports import free_port
from conquiet.errors import QueueConnectionError, StoreUnavailableError
from conquiet.jobs import open_async_store, open_store
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, RedisStreamsQueue, connect, connect_async
from conquiet.reconcile import open_database
from tests.abuse.certificates import Authority, Signed
from tests.abuse.secrets import unseen
from tests.abuse.tls_front import TlsFront

CONFIG = QueueConfig("orders", "billing", "alice", block_ms=50)


@dataclass(frozen=True)
class Certificates:
    """`ours` signed `right` (for 127.0.0.1) and `elsewhere` (for another host); `stranger` signed neither."""

    ours: Authority
    stranger: Authority
    right: Signed
    elsewhere: Signed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    ours, stranger = Authority(folder, "ours"), Authority(folder, "stranger")
    return Certificates(
        ours, stranger, ours.sign("IP:127.0.0.1", "DNS:localhost"), ours.sign("DNS:elsewhere.example")
    )


def own_tls_of_redis(server: RedisServer, signed: Signed) -> int | None:
    """The port on which the server itself speaks TLS; None if it was built without TLS."""
    port = free_port()
    settings = {"tls-auth-clients": "no", "tls-cert-file": signed.certificate, "tls-key-file": signed.key}
    settings["tls-port"] = str(port)
    with redis.Redis.from_url(server.url) as client:
        try:
            client.execute_command(
                "CONFIG", "SET", *(str(word) for pair in settings.items() for word in pair)
            )
            return port
        except redis.RedisError:  # refused; or the server crashed on the command, as the wheel's does
            server.restart()
            return None


@pytest.fixture(scope="module")
def redis_ports(redis_server: RedisServer, certificates: Certificates) -> Iterator[dict[str, int]]:
    """Ports with the right certificate, with one for another host, and without TLS."""
    with ExitStack() as stack:
        ports = {}
        for name in ("right", "elsewhere"):
            signed = getattr(certificates, name)
            server = stack.enter_context(RedisServer(binary=redis_server.binary, config={"requirepass": ""}))
            own = own_tls_of_redis(server, signed)
            ports[name] = own or stack.enter_context(TlsFront(server.port, signed)).port
            ports["clear"] = server.port
        yield ports


def redis_says(url: str, **options: object) -> str:
    with connect(url, **options) as client:
        queue = RedisStreamsQueue(client, CONFIG)
        queue.enqueue({"a": 1})
        return str(queue.read(1_000, 1)[0].payload)


def redis_says_async(url: str, **options: object) -> str:
    async def talk() -> str:
        client = connect_async(url, **options)
        try:
            queue = await AsyncRedisStreamsQueue.create(client, CONFIG)
            await queue.enqueue({"a": 1})
            return str((await queue.read(1_000, 1))[0].payload)
        finally:
            await client.aclose()

    return asyncio.run(talk())


@pytest.mark.parametrize("says", [redis_says, redis_says_async], ids=["sync", "async"])
def test_redis_over_tls(redis_ports: dict[str, int], certificates: Certificates, says: object) -> None:
    assert callable(says)
    ours, stranger = certificates.ours.certificate, certificates.stranger.certificate
    right = f"rediss://127.0.0.1:{redis_ports['right']}/0"
    assert says(right, ssl_ca_certs=str(ours)) == "{'a': 1}"
    assert says(f"{right}?ssl_ca_certs={ours}") == "{'a': 1}"
    assert says(f"{right}?ssl_ca_certs={ours}&ssl_cert_reqs=required&ssl_check_hostname=true") == "{'a': 1}"
    assert says(f"{right}?ssl_cert_reqs=none&ssl_check_hostname=false") == "{'a': 1}"

    elsewhere = f"rediss://127.0.0.1:{redis_ports['elsewhere']}/0"
    assert says(f"{elsewhere}?ssl_ca_certs={ours}&ssl_check_hostname=false") == "{'a': 1}"
    password = "hunter2"
    for refused in (
        right,  # signed by an authority that this machine does not trust
        f"{right}?ssl_ca_certs={stranger}",
        f"{right}?ssl_ca_certs={stranger}&ssl_check_hostname=false",
        f"{elsewhere}?ssl_ca_certs={ours}",
    ):
        with pytest.raises(QueueConnectionError, match="(?i)certificate|ssl") as error:
            says(refused.replace("127", f"app:{password}@127", 1), socket_timeout=10.0)
        unseen(password, error.value)


def test_nothing_is_said_in_the_clear_to_a_redis_that_wants_tls(redis_ports: dict[str, int]) -> None:
    with pytest.raises(QueueConnectionError):
        redis_says(f"redis://127.0.0.1:{redis_ports['right']}/0", socket_timeout=0.5)
    with pytest.raises(QueueConnectionError):
        redis_says(f"rediss://127.0.0.1:{redis_ports['clear']}/0", socket_timeout=0.5)


def own_tls_of_postgres(server: PostgresServer, signed: Signed) -> bool:
    """Let the server itself speak TLS with this certificate; False if it was built without TLS."""
    data = server.folder / "data"
    owner = data.stat()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for name, source in (("ssl_cert_file", signed.certificate), ("ssl_key_file", signed.key)):
            target = data / f"test-{name}"
            shutil.copyfile(source, target)
            os.chmod(target, 0o600)
            os.chown(target, owner.st_uid, owner.st_gid)
            connection.execute(f"ALTER SYSTEM SET {name} = '{target.name}'".encode())
        try:
            connection.execute("ALTER SYSTEM SET ssl = on")
        except psycopg.errors.InvalidParameterValue:  # "SSL is not supported by this build"
            return False
    server.restart()
    return True


@pytest.fixture(scope="module")
def postgres_dsns(certificates: Certificates) -> Iterator[dict[str, str]]:
    """Servers with the right certificate and with one for another host."""
    with ExitStack() as stack:
        dsns = {}
        for name in ("right", "elsewhere"):
            signed = getattr(certificates, name)
            server = stack.enter_context(PostgresServer(fsync=False))
            port = server.port
            if not own_tls_of_postgres(server, signed):
                port = stack.enter_context(TlsFront(server.port, signed, postgres=True)).port
            dsns[name] = server.dsn.replace(f":{server.port}/", f":{port}/")
        yield dsns


def store_opens(dsn: str) -> None:
    with open_store(dsn) as store:
        job = store.enqueue("q", {"a": 1})
        assert store.get(job.id) == job
        ((connection, _),) = store.operations.backend._idle  # type: ignore[attr-defined]
        assert connection.pgconn.ssl_in_use


def store_opens_async(dsn: str) -> None:
    async def talk() -> None:
        async with await open_async_store(dsn) as store:
            job = await store.enqueue("q", {"a": 1})
            assert await store.get(job.id) == job

    asyncio.run(talk())


def database_opens(dsn: str) -> None:
    try:
        sessions = open_database(dsn)
    except Exception as error:
        raise StoreUnavailableError(str(error)) from error
    with sessions() as session:
        session.execute(text("SELECT 1"))
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.pgconn.ssl_in_use
    sessions.kw["bind"].dispose()


@pytest.mark.parametrize("opens", [store_opens, store_opens_async, database_opens])
def test_postgresql_over_tls(
    postgres_dsns: dict[str, str], certificates: Certificates, opens: object
) -> None:
    assert callable(opens)
    ours, stranger = certificates.ours.certificate, certificates.stranger.certificate
    right, elsewhere = postgres_dsns["right"], postgres_dsns["elsewhere"]
    password = right.split(":")[2].partition("@")[0]
    opens(f"{right}?sslmode=verify-full&sslrootcert={ours}")
    opens(f"{right}?sslmode=require")
    opens(f"{elsewhere}?sslmode=verify-ca&sslrootcert={ours}")
    for refused in (
        f"{right}?sslmode=verify-full&sslrootcert={stranger}",
        f"{right}?sslmode=verify-ca&sslrootcert={stranger}",
        f"{right}?sslmode=verify-full&sslrootcert={Path('/nowhere/at/all.pem')}",
        f"{elsewhere}?sslmode=verify-full&sslrootcert={ours}",
    ):
        with pytest.raises(StoreUnavailableError, match="certificate") as error:
            opens(refused)
        unseen(password, error.value)


def test_a_server_without_tls_is_refused_where_tls_is_demanded(
    postgres_server: PostgresServer, certificates: Certificates
) -> None:
    for mode in ("require", f"verify-full&sslrootcert={certificates.ours.certificate}"):
        with pytest.raises(StoreUnavailableError, match="does not support SSL"):
            open_store(f"{postgres_server.dsn}?sslmode={mode}")
