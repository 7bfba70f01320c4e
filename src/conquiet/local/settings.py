"""The settings of an in-process queue, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from conquiet.errors import LocalConfigError

__all__ = ["QUEUE_SETTINGS", "QueueSettings", "checked_int", "checked_seconds"]

MAX_SECONDS = 100 * 366 * 86_400.0  # a century: later than that is a mistake


def _default_priorities() -> dict[str, int]:
    return {"high": 0, "normal": 5, "low": 10}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`priorities` maps labels to values, the lower the sooner; past `max_in_memory` items enqueue is refused.

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
        # A copy that nobody can change: a queue looks its labels up for as long as it lives.
        object.__setattr__(self, "priorities", MappingProxyType(dict(priorities)))
        checked_int("QueueSettings.max_in_memory", self.max_in_memory)
        checked_int("QueueSettings.warn_depth", self.warn_depth)


def checked_int(what: str, value: object) -> int:
    """`value`, if it is an int (a bool is not) of at least 1."""
    if type(value) is not int or value < 1:
        raise LocalConfigError(f"{what} must be an int of at least 1, not {value!r}")
    return value


def checked_seconds(what: str, value: object, *, above: float = -math.inf) -> float:
    """`value`, if it is a number of seconds greater than `above` and within a century."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -MAX_SECONDS <= value <= MAX_SECONDS or value <= above:  # type: ignore[operator]
        bound = "" if above == -math.inf else f" above {above:g}"
        raise LocalConfigError(f"{what} must be a number of seconds{bound}, not {value!r}")
    return float(value)  # type: ignore[arg-type]


QUEUE_SETTINGS = QueueSettings()
