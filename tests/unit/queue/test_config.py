"""QueueConfig, consumer names, and which settings the consumers accept. No server is contacted."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.errors import QueueConfigError, QueueError
from conquiet.queue import (
    AsyncQueueConsumer,
    AsyncRedisStreamsQueue,
    QueueConfig,
    QueueConsumer,
    RedisStreamsQueue,
    connect,
    connect_async,
    unique_consumer_name,
)

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.clause("S-22")
def test_the_fields_and_defaults_are_those_of_the_document() -> None:
    fields = [(field.name, field.default) for field in dataclasses.fields(QueueConfig)]
    assert fields == [
        ("stream_key", dataclasses.MISSING),
        ("consumer_group", dataclasses.MISSING),
        ("consumer_name", dataclasses.MISSING),
        ("block_ms", 5_000),
        ("max_read_count", 1),
        ("claim_idle_ms", 60_000),
    ]
    config = QueueConfig("orders", "billing", "alice")
    assert (config.stream_key, config.consumer_group, config.consumer_name) == ("orders", "billing", "alice")


@pytest.mark.clause("S-22")
def test_it_cannot_be_changed_afterwards() -> None:
    config = QueueConfig("orders", "billing", "alice")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.block_ms = 0  # type: ignore[misc]
    with pytest.raises(QueueConfigError):
        dataclasses.replace(config, block_ms=0)  # a changed copy is checked, too
    assert config == QueueConfig("orders", "billing", "alice")
    assert hash(config) == hash(QueueConfig("orders", "billing", "alice"))


@pytest.mark.clause("S-22")
@pytest.mark.parametrize("name", ["stream_key", "consumer_group", "consumer_name"])
@pytest.mark.parametrize("wrong", ["", None, 5, b"orders", ["orders"], "lone \ud800"], ids=ascii)
def test_names_are_text_and_not_empty(name: str, wrong: Any) -> None:
    right = {"stream_key": "orders", "consumer_group": "billing", "consumer_name": "alice"}
    with pytest.raises(
        QueueConfigError, match=f"QueueConfig.{name} (must be a non-empty str|is not valid)"
    ) as caught:
        QueueConfig(**right | {name: wrong})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, QueueError)


@pytest.mark.clause("S-12", "S-22")
@pytest.mark.parametrize("name", ["block_ms", "max_read_count", "claim_idle_ms"])
@pytest.mark.parametrize("wrong", [0, -1, True, False, 1.0, 1.5, "5", None], ids=repr)
def test_numbers_are_positive_ints(name: str, wrong: Any) -> None:
    with pytest.raises(QueueConfigError, match=f"QueueConfig.{name} must be"):
        QueueConfig("orders", "billing", "alice", **{name: wrong})


@pytest.mark.clause("S-22")
def test_unusual_but_legal_settings_are_taken() -> None:
    config = QueueConfig(
        "schlüssel:{1}", "g g", "naïve name", block_ms=1, max_read_count=500, claim_idle_ms=1
    )
    assert config.max_read_count == 500


def sync_consumer(config: QueueConfig) -> object:
    with connect(NOWHERE) as client:
        return QueueConsumer(client, config)


def async_consumer(config: QueueConfig) -> object:
    return AsyncQueueConsumer(connect_async(NOWHERE), config)


@pytest.mark.clause("S-23")
@pytest.mark.parametrize("make", [sync_consumer, async_consumer])
@pytest.mark.parametrize("count", [2, 10])
def test_a_consumer_refuses_to_read_ahead(make: Callable[[QueueConfig], object], count: int) -> None:
    with pytest.raises(QueueConfigError, match=f"max_read_count must be 1 for a QueueConsumer, not {count}"):
        make(QueueConfig("orders", "billing", "alice", max_read_count=count))


@pytest.mark.clause("S-23")
def test_the_queue_itself_does_not_mind() -> None:
    AsyncRedisStreamsQueue(
        connect_async(NOWHERE), QueueConfig("orders", "billing", "alice", max_read_count=10)
    )


@pytest.mark.parametrize("config", [None, {}, ("orders", "billing", "alice")], ids=repr)
def test_what_is_no_configuration_is_refused(config: Any) -> None:
    with connect(NOWHERE) as client:
        for made in (RedisStreamsQueue, QueueConsumer):
            with pytest.raises(QueueConfigError, match="config must be a QueueConfig"):
                made(client, config)


@pytest.mark.clause("S-24")
def test_a_unique_name_has_host_process_and_a_random_part() -> None:
    names = {unique_consumer_name() for _ in range(1000)}
    assert len(names) == 1000
    assert {name.rpartition("-")[0] for name in names} == {f"{socket.gethostname()}-{os.getpid()}"}
    QueueConfig("orders", "billing", names.pop())
