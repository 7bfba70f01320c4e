"""The settings of an in-process queue, checked when they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from conquiet.checks import MAX_INT, checked_int, checked_seconds
from conquiet.errors import LocalConfigError

__all__ = ["QUEUE_SETTINGS", "QueueSettings"]


def _default_priorities() -> dict[str, int]:
    return {"high": 0, "normal": 5, "low": 10}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`priorities` maps labels to values; lower values go first. At `max_in_memory` items, enqueue is refused.

    Reaching `warn_depth` items writes one line to the log.

    Priorities are strict: while higher ones arrive as fast as workers take them, lower ones wait for ever. With
    `ageing_seconds` they do not: an item goes ahead of those whose value is lower by `n` and that become ready more than
    `n * ageing_seconds` after it.
    """

    priorities: Mapping[str, int] = field(default_factory=_default_priorities, hash=False)
    max_in_memory: int = 5_000
    warn_depth: int = 1_000
    ageing_seconds: float | None = None

    def __post_init__(self) -> None:
        priorities: object = self.priorities
        if not isinstance(priorities, Mapping) or not priorities:
            raise LocalConfigError(
                f"QueueSettings.priorities must map at least one label to an int, not {priorities!r}"
            )
        for label, value in priorities.items():
            if not isinstance(label, str) or not label or type(value) is not int:
                raise LocalConfigError(
                    f"QueueSettings.priorities must map labels to ints, not {label!r} to {value!r}"
                )
            if not -MAX_INT <= value <= MAX_INT:
                raise LocalConfigError(
                    f"QueueSettings.priorities: the value of {label!r} must be from {-MAX_INT} to {MAX_INT}"
                )
        # An immutable copy: queues rely on it for as long as they exist.
        object.__setattr__(self, "priorities", MappingProxyType(dict(priorities)))
        checked_int("QueueSettings.max_in_memory", self.max_in_memory, 1, error=LocalConfigError)
        checked_int("QueueSettings.warn_depth", self.warn_depth, 1, error=LocalConfigError)
        if self.ageing_seconds is not None:
            checked_seconds(
                "QueueSettings.ageing_seconds", self.ageing_seconds, above_zero=True, error=LocalConfigError
            )


QUEUE_SETTINGS = QueueSettings()
