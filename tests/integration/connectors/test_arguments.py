"""What a connector is given instead of its source, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from conquiet.connectors import (
    AsyncIterableConnector,
    AsyncJobConnector,
    AsyncLocalQueueConnector,
    AsyncStreamConnector,
    IterableConnector,
    JobConnector,
    LocalQueueConnector,
    StreamConnector,
)
from conquiet.errors import ConfigError, TaskConfigError
from conquiet.jobs import open_store
from conquiet.local import PriorityDelayQueue
from conquiet.queue import AsyncRedisStreamsQueue, QueueConfig, RedisStreamsQueue, connect

CONNECTORS: dict[Any, tuple[tuple[Any, ...], str]] = {
    JobConnector: (("q",), r"a JobStore \(open_store\(dsn\) makes one\)"),
    AsyncJobConnector: (("q",), r"an AsyncJobStore \(await open_async_store\(dsn\) makes one\)"),
    StreamConnector: ((), "a RedisStreamsQueue"),
    AsyncStreamConnector: ((), "an AsyncRedisStreamsQueue"),
    LocalQueueConnector: ((), "a PriorityDelayQueue"),
    AsyncLocalQueueConnector: ((), "a PriorityDelayQueue"),
    IterableConnector: ((), "an iterable"),
    AsyncIterableConnector: ((), "an iterable"),
}


@pytest.mark.parametrize("wrong", [None, 5])
@pytest.mark.parametrize("kind", CONNECTORS)
def test_what_is_no_source_is_refused_and_the_right_one_named(kind: Any, wrong: object) -> None:
    arguments, named = CONNECTORS[kind]
    with pytest.raises(
        TaskConfigError, match=f"{kind.__name__} takes {named}, not {type(wrong).__name__}"
    ) as caught:
        kind(wrong, *arguments)
    assert isinstance(caught.value, ConfigError)


def test_the_other_variant_and_a_url_are_refused(tmp_path: Path, redis_url: str, config: QueueConfig) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store, connect(redis_url) as client:
        with pytest.raises(TaskConfigError, match="takes an AsyncJobStore .*, not JobStore"):
            AsyncJobConnector(store, "q")  # type: ignore[arg-type]
        with pytest.raises(TaskConfigError, match="takes a JobStore .*, not str"):
            JobConnector(f"sqlite:///{tmp_path}/jobs.db", "q")  # type: ignore[arg-type]
        with pytest.raises(TaskConfigError, match="takes an AsyncRedisStreamsQueue, not RedisStreamsQueue"):
            AsyncStreamConnector(RedisStreamsQueue(client, config))  # type: ignore[arg-type]
        with pytest.raises(TaskConfigError, match="takes a RedisStreamsQueue, not AsyncRedisStreamsQueue"):
            StreamConnector(AsyncRedisStreamsQueue(redis.asyncio.Redis(), config))  # type: ignore[arg-type]
        with pytest.raises(TaskConfigError, match="takes a RedisStreamsQueue, not Redis"):
            StreamConnector(client)


@pytest.mark.parametrize("wrong", [-1, "5", None, float("nan")])
def test_a_time_that_is_none_is_refused(wrong: Any, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        for kind in (LocalQueueConnector, AsyncLocalQueueConnector):
            with pytest.raises(ConfigError, match="poll_timeout"):
                kind(PriorityDelayQueue(), poll_timeout=wrong)
        with pytest.raises(ConfigError, match="lease_ttl"):
            JobConnector(store, "q", lease_ttl=wrong)
