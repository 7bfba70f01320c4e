"""The settings of a stream, its group and one consumer, checked when they are created."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from conquiet.checks import checked_int
from conquiet.errors import QueueConfigError

__all__ = ["QueueConfig", "checked_block_ms", "unique_consumer_name"]


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The stream, the consumer group and the name of this consumer.

    `consumer_name` must be unique among running processes (`unique_consumer_name()` creates one).
    `max_read_count` must be 1 for a `QueueConsumer`, which has no buffer.
    """

    stream_key: str
    consumer_group: str
    consumer_name: str
    block_ms: int = 5_000
    max_read_count: int = 1
    claim_idle_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("stream_key", "consumer_group", "consumer_name"):
            _check_name(name, getattr(self, name))
        checked_block_ms("QueueConfig.block_ms", self.block_ms)
        for name in ("max_read_count", "claim_idle_ms"):
            checked_int(f"QueueConfig.{name}", getattr(self, name), 1, error=QueueConfigError)


def unique_consumer_name() -> str:
    """Return a consumer name that no other process has, not even a fork: host, process id and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def checked_block_ms(what: str, value: object) -> int:
    if type(value) is int and value == 0:
        raise QueueConfigError(f"{what} must be at least 1, not 0 (for Redis, 0 means to block for ever)")
    return checked_int(what, value, 1, error=QueueConfigError)


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise QueueConfigError(f"QueueConfig.{name} must be a non-empty str, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise QueueConfigError(f"QueueConfig.{name} is not valid Unicode: {value!r}") from error
