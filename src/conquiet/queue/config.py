"""The settings of a stream, its group and one consumer, checked when they are made."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from conquiet.errors import QueueConfigError

__all__ = ["QueueConfig", "checked_int", "unique_consumer_name"]


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Which stream, which consumer group, and who this consumer is.

    `consumer_name` must be unique among the processes alive (`unique_consumer_name()` makes one).
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
        for name in ("block_ms", "max_read_count", "claim_idle_ms"):
            checked_int(f"QueueConfig.{name}", getattr(self, name), at_least=1)


def unique_consumer_name() -> str:
    """A consumer name that no other process has: host, process id and a random part (so also after a fork)."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def checked_int(name: str, value: object, at_least: int) -> int:
    """`value`, if it is an int (a bool is not) of at least `at_least`."""
    if type(value) is not int:
        raise QueueConfigError(f"{name} must be an int of at least {at_least}, not {value!r}")
    if value < at_least:
        why = " (to Redis, 0 means: block for ever)" if "block_ms" in name and value == 0 else ""
        raise QueueConfigError(f"{name} must be at least {at_least}, not {value}{why}")
    return value


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise QueueConfigError(f"QueueConfig.{name} must be a non-empty str, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise QueueConfigError(f"QueueConfig.{name} is not valid Unicode: {value!r}") from error
