"""connect: a client that retries nothing, and errors that do not show the password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from conquiet.embedded import RedisServer
from conquiet.queue import (
    QueueConfig,
    QueueConfigError,
    QueueConnectionError,
    QueueError,
    RedisStreamsQueue,
    connect,
    connect_async,
)
from tests.descriptors import descriptors_left

CONNECTS = pytest.mark.parametrize("connecting", [connect, connect_async], ids=["sync", "async"])


@pytest.mark.clause("S-26")
@CONNECTS
@pytest.mark.parametrize(
    "options",
    [{}, {"retry": Retry(ExponentialBackoff(), 5)}, {"retry_on_error": [ConnectionError]}],
    ids=["nothing", "retry", "retry_on_error"],
)
def test_the_client_retries_nothing_whatever_it_is_told(
    connecting: Callable[..., Any], options: dict[str, Any]
) -> None:
    client = connecting("redis://127.0.0.1:1/0", **options)
    assert client.get_retry()._retries == 0
    assert client.connection_pool.connection_kwargs["retry"]._retries == 0
    assert client.connection_pool.connection_kwargs["retry_on_error"] == []


@CONNECTS
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/0",
        "redis://app:hunter2@127.0.0.1:port/0",
        "redis://app:hunter2@127.0.0.1:99999999/0",
        "redis://app:hunter2@127.0.0.1/0?socket_timeout=soon",
        "//app:hunter2@127.0.0.1",
        "app:hunter2@127.0.0.1",
        "redis://app:hunter2/and@more@127.0.0.1/0",  # unescaped
        "redis://app:hunter2#and?more@127.0.0.1:6379/0",
        "",
        None,
        5,
    ],
    ids=repr,
)
def test_an_unusable_url_is_refused_without_showing_the_password(
    connecting: Callable[..., Any], url: Any
) -> None:
    with pytest.raises(QueueConfigError, match="is not a usable Redis URL .* expected redis://") as caught:
        connecting(url)
    shown = str(caught.value) + str(caught.value.__cause__)
    assert "hunter2" not in shown
    assert caught.value.__suppress_context__


@CONNECTS
def test_options_go_to_the_client(connecting: Callable[..., Any]) -> None:
    client = connecting("redis://127.0.0.1:1/3", socket_timeout=1.5, client_name="me")
    settings = client.connection_pool.connection_kwargs
    assert (settings["socket_timeout"], settings["client_name"], settings["db"]) == (1.5, "me", 3)
    assert settings["socket_connect_timeout"] == 5.0


def test_a_password_is_used_and_never_shown(queues: Any, redis_server: RedisServer) -> None:
    with RedisServer(binary=redis_server.binary, config={"requirepass": "s3cret"}) as server:
        queue = queues.queue(client=queues.client(server.url))
        assert queue.enqueue({})
        with pytest.raises(QueueError) as caught:
            queues.queue(client=queues.client(server.url.replace("s3cret", "hunter2")))
        assert "hunter2" not in str(caught.value) + str(caught.value.__cause__)


@CONNECTS
def test_without_a_file_descriptor_it_says_so(connecting: Callable[..., Any]) -> None:
    with descriptors_left(0), pytest.raises(QueueConnectionError, match="Too many open files"):
        connecting("redis://app:hunter2@127.0.0.1:1/0")
    connecting("redis://127.0.0.1:1/0")


def test_a_client_without_a_file_descriptor_says_so_and_goes_on_later(redis_url: str) -> None:
    with connect(redis_url) as client:
        queue = RedisStreamsQueue(client, QueueConfig("s", "g", "c"))
        client.connection_pool.disconnect()
        with descriptors_left(0), pytest.raises(QueueConnectionError):
            queue.enqueue({"n": 1})
        queue.enqueue({"n": 2})
        assert client.xlen("s") == 1
