"""The settings of an in-process queue, checked when they are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from conquiet.checks import checked_int
from conquiet.errors import LocalConfigError

__all__ = ["QUEUE_SETTINGS", "QueueSettings"]


def _default_priorities() -> dict[str, int]:
    return {"high": 0, "normal": 5, "low": 10}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`priorities` maps labels to values; lower values go first. At `max_in_memory` items, enqueue is refused.

    Reaching `warn_depth` items writes one line to the log.
    """

    priorities: Mapping[str, int] = field(default_factory=_default_priorities, hash=False)
    max_in_memory: int = 5_000
    warn_depth: int = 1_000

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
        # An immutable copy: queues rely on it for as long as they exist.
        object.__setattr__(self, "priorities", MappingProxyType(dict(priorities)))
        checked_int("QueueSettings.max_in_memory", self.max_in_memory, 1, error=LocalConfigError)
        checked_int("QueueSettings.warn_depth", self.warn_depth, 1, error=LocalConfigError)


QUEUE_SETTINGS = QueueSettings()
