"""Who Redis lets in, and what a user may do: a refusal is an error of the settings, and is not tried again."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from conquiet.embedded import RedisServer
from conquiet.errors import AccessProblem, ConfigError, UnavailableError
from conquiet.queue import (
    NoTransactions,
    QueueAccessError,
    QueueConfigError,
    QueueConnectionError,
    QueueError,
    connect,
    connect_async,
)
from tests.integration.queue.recording import Recording
from tests.topologies import SERVICE, ClusterOfServers, Replicated

PAGE = (Path(__file__).parents[3] / "docs" / "queue.md").read_text(encoding="utf-8")


@pytest.fixture
def locked(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(binary=redis_server.binary, config={"requirepass": "s3cret-of-it"}) as server:
        yield server


def with_user(url: str, user: str) -> str:
    return re.sub(r"//[^@]*@|//", f"//{user}@" if user else "//", url, count=1)


@pytest.mark.clause("S-29")
@pytest.mark.parametrize(
    ("user", "code"),
    [("", "NOAUTH"), (":wrong", "WRONGPASS"), ("nobody:wrong", "WRONGPASS")],
)
def test_a_user_or_password_that_is_refused_is_an_error_of_the_settings(
    queues: Any, locked: RedisServer, user: str, code: str
) -> None:
    client = queues.client(with_user(locked.url, user))
    with pytest.raises(QueueAccessError, match=f": {code} ") as caught:
        queues.queue(client=client)
    error = caught.value
    assert isinstance(error, ConfigError)
    assert isinstance(error, QueueError)
    assert not isinstance(error, UnavailableError)
    assert (error.problem, error.code) == (AccessProblem.CREDENTIALS, code)
    assert "correct the user and the password" in str(error)
    assert "wrong" not in str(error).replace("WRONG", "")


# redis-py leaves the sockets of a cluster that it could not open to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.clause("S-29")
@pytest.mark.parametrize("topology", ["sentinels", "cluster"])
def test_behind_sentinels_and_in_a_cluster_too(queues: Any, redis_server: RedisServer, topology: str) -> None:
    kind = Replicated if topology == "sentinels" else ClusterOfServers

    def problem() -> AccessProblem | None:
        with kind(redis_server.binary) as servers, pytest.raises(QueueAccessError) as caught:
            queues.queue(client=queues.client(with_user(servers.url, ":wrong")))
        return caught.value.problem

    assert problem() is AccessProblem.CREDENTIALS
    gc.collect()


def test_a_password_that_the_sentinels_refuse_is_named_as_theirs(queues: Any, replicated: Replicated) -> None:
    own = "of the sentinels"
    for sentinel in replicated.sentinels:
        sentinel.raw.execute_command("ACL", "SETUSER", "default", "resetpass", f">{own}")
    for options in ({}, {"sentinel_password": SERVICE}):
        with pytest.raises(QueueAccessError, match="sentinel_username and sentinel_password") as caught:
            queues.queue(client=queues.client(replicated.url, **options))
        assert caught.value.problem is AccessProblem.CREDENTIALS
    queues.queue(client=queues.client(replicated.url, sentinel_password=own)).enqueue({})


@pytest.fixture
def limited(locked: RedisServer) -> Callable[[str], str]:
    """Make a user with these rules, and return its URL."""

    def make(rules: str) -> str:
        with redis.Redis.from_url(locked.url) as admin:
            admin.execute_command("ACL", "SETUSER", "app", "reset", "on", ">app-pw", *rules.split())
        return with_user(locked.url, "app:app-pw")

    return make


@pytest.mark.clause("S-29")
def test_a_right_that_is_missing_is_named(queues: Any, limited: Callable[[str], str]) -> None:
    queue = queues.queue(client=queues.client(limited("~orders +@all -xadd")))
    with pytest.raises(QueueAccessError, match="NOPERM.*xadd") as caught:
        queue.enqueue({})
    assert caught.value.problem is AccessProblem.PERMISSION
    assert caught.value.code == "NOPERM"
    assert isinstance(caught.value.__cause__, redis.exceptions.NoPermissionError)


def test_the_acl_of_the_page_is_enough_for_everything_and_no_wider(
    queues: Any, limited: Callable[[str], str], locked: RedisServer
) -> None:
    found = re.search(r"ACL SETUSER app on >\S+ (.+?)\n\n", PAGE, re.DOTALL)
    assert found is not None
    rules = found[1].replace("\\\n", " ")
    client = queues.client(limited(rules))
    queue, consumer = queues.queue(client=client), queues.consumer("bob", client=client, claim_idle_ms=1)
    queue.enqueue({"n": 0})
    queue.enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])
    queue.ack(queue.read(1000)[0])
    queue.ack_if_owner(queue.read(1000)[0])
    (taken,) = queue.read(1000)
    assert [message.id for message in queues.queue("eve", client=client).claim_stale(0)] == [taken.id]
    with locked_admin(locked) as admin:
        admin.xdel("orders", taken.id)
    assert queue.claim_stale(0).gone == [taken.id]
    recording = Recording(commit=consumer.stop)
    consumer.run(handler=recording.handle, db_factory=recording, fenced=True)
    queue.enqueue({"n": 4})
    assert queue.read(1000)
    rescuer = queues.consumer("rescuer", client=client, claim_idle_ms=1)
    rescuer.run_recovery(
        handler=lambda message, tx: rescuer.stop(), db_factory=NoTransactions(), interval_ms=1, fenced=True
    )
    assert queue.backlog_stats().pending == 0
    _waiting(queues, client)
    with pytest.raises(QueueAccessError):
        queues.queue(client=client, stream_key="another")


def _waiting(queues: Any, client: Any) -> None:
    from conquiet.queue import AsyncRedisStreamsQueue, RedisStreamsQueue, UnreplicatedEnqueueError
    from tests.integration.queue.variants import Blocking, settings

    if queues.name == "sync":
        queue: Any = RedisStreamsQueue(client, settings(), min_replicas=1, replicas_timeout_ms=1)
    else:
        queue = Blocking(
            AsyncRedisStreamsQueue(client, settings(), min_replicas=1, replicas_timeout_ms=1), queues._loop
        )
    with pytest.raises(UnreplicatedEnqueueError) as caught:
        queue.enqueue({})
    assert caught.value.replicas == 0


def locked_admin(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


@pytest.mark.parametrize("connecting", [connect, connect_async])
@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("socket_timeout=soon", "socket_timeout"),
        ("no_such_option=1", "no_such_option"),
        ("protocol=9", "protocol must be"),
    ],
)
def test_a_wrong_option_is_named_and_not_blamed_on_the_password(
    connecting: Callable[..., Any], scheme: str, option: str, named: str
) -> None:
    place = "127.0.0.1:1/orders" if "sentinel" in scheme else "127.0.0.1:1"
    with pytest.raises(QueueConfigError, match="an option, after \\? or as an argument, is wrong") as caught:
        connecting(f"{scheme}://app:s3cret@{place}?{option}")
    assert named in str(caught.value)
    assert "in a password" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.problem is AccessProblem.ADDRESS


@pytest.mark.parametrize("blocking", [False, True], ids=["pool", "blocking pool"])
def test_a_pool_without_a_free_connection_is_told_from_a_server_that_is_away(
    queues: Any, redis_url: str, blocking: bool
) -> None:
    client = queues.client(max_connections=1)
    if blocking:
        module = redis if queues.name == "sync" else redis.asyncio
        pool = module.BlockingConnectionPool.from_url(redis_url, max_connections=1, timeout=0.01)
        client = queues.keep(module.Redis(connection_pool=pool))
    queue = queues.queue(client=client)
    pool = client.connection_pool
    wait: Callable[[Any], Any] = queues._loop.wait if queues.name == "async" else lambda value: value
    taken = wait(pool.get_connection())
    try:
        with pytest.raises(
            QueueConnectionError, match="client's own pool are in use.*max_connections"
        ) as caught:
            queue.enqueue({})
        assert type(caught.value) is QueueConnectionError  # nothing was sent
    finally:
        wait(pool.release(taken))
    queue.enqueue({})
    wait(pool.disconnect())
