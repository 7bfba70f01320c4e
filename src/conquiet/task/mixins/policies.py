"""Policies: what the engine may do, as immutable data. Checked when built, JSON in and out, never changed.

All durations are seconds. Tasks and connectors never see a policy; the engine alone reads them.
"""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self, get_type_hints

from conquiet.backoff import exponential
from conquiet.errors import PayloadError, PolicyError, redact
from conquiet.payload import decode, encode

__all__ = [
    "BatchPolicy",
    "ConcurrencyPolicy",
    "ConsumerLoopPolicy",
    "ConsumerPolicy",
    "ConsumerSteps",
    "EmptyQueuePolicy",
    "ExceptionPolicy",
    "FetchPolicy",
    "ProcessPolicy",
    "RetryPolicy",
    "SuccessPolicy",
]


class _Policy:
    """What all policies can: become plain data, and be made of it."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            item.name: value.to_dict() if isinstance(value, _Policy) else value
            for item in fields(self)  # type: ignore[arg-type]
            for value in (getattr(self, item.name),)
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The policy in `data`; keys left out have their defaults, unknown ones are refused by name."""
        if not isinstance(data, Mapping):
            raise PolicyError(f"{cls.__name__} is made of a mapping, not {type(data).__name__}")
        types = get_type_hints(cls)
        known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        for key in data:
            if key not in known:
                raise PolicyError(
                    f"{cls.__name__} has no field {_shown(key)}; it has: {', '.join(sorted(known))}"
                )
        return cls(
            **{
                key: types[key].from_dict(value) if is_dataclass(types[key]) else value
                for key, value in data.items()
            }
        )

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise PolicyError(f"{cls.__name__}: not JSON: {error}") from error
        return cls.from_dict(data)

    def _check_count(self, name: str, *, optional: bool = False, at_least: int = 1) -> None:
        value = getattr(self, name)
        if not (optional and value is None) and (type(value) is not int or value < at_least):
            raise PolicyError(
                f"{type(self).__name__}.{name} must be an int of at least {at_least}, not {_shown(value)}"
            )

    def _check_number(self, name: str, at_least: float) -> None:
        value = getattr(self, name)
        if not _is_number(value) or value < at_least:
            raise PolicyError(
                f"{type(self).__name__}.{name} must be a number of at least {at_least}, not {_shown(value)}"
            )

    def _check_timeout(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (not _is_number(value) or value <= 0):
            raise PolicyError(
                f"{type(self).__name__}.{name} must be None or a number of seconds above 0, not {_shown(value)}"
            )

    def _check_bool(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise PolicyError(f"{type(self).__name__}.{name} must be True or False, not {_shown(value)}")

    def _check_policy(self, name: str, kind: type) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind):
            raise PolicyError(f"{type(self).__name__}.{name} must be a {kind.__name__}, not {_shown(value)}")


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )  # false for NaN too


def _shown(value: object) -> str:
    """A refused value in a message: short, and without secrets if it was a DSN by mistake."""
    return redact(reprlib.repr(value)) if isinstance(value, str | int | float) else type(value).__name__


@dataclass(frozen=True, slots=True)
class RetryPolicy(_Policy):
    """How often a step is attempted (the first time counts), for how long, and how long to wait in between.

    The wait before retry k (0 after the first failure) is `backoff * backoff_multiplier ** k`, at most
    `backoff_cap` where that is above 0. There is no jitter: the engine is deterministic.
    """

    max_attempts: int = 1
    timeout: float | None = None
    backoff: float = 0.0
    backoff_multiplier: float = 2.0
    backoff_cap: float = 0.0

    def __post_init__(self) -> None:
        self._check_count("max_attempts")
        self._check_timeout("timeout")
        self._check_number("backoff", 0)
        self._check_number("backoff_multiplier", 1)
        self._check_number("backoff_cap", 0)

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures before this one (0 after the first)."""
        return exponential(self.backoff, self.backoff_multiplier, failures, self.backoff_cap)


@dataclass(frozen=True, slots=True)
class ConcurrencyPolicy(_Policy):
    """How many transactions are in flight at most; `min` and `max` bound what `value` may be."""

    value: int = 1
    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        self._check_count("value")
        self._check_count("min")
        self._check_count("max", optional=True)
        if self.min > self.value or (self.max is not None and self.value > self.max):
            raise PolicyError(
                f"ConcurrencyPolicy needs min <= value <= max, not {self.min} <= {self.value} <= {self.max}"
            )


@dataclass(frozen=True, slots=True)
class BatchPolicy(_Policy):
    """How many transactions one fetch asks for. The other fields are reserved."""

    size: int = 1
    min_size: int | None = None
    max_size: int | None = None
    interval: float = 0.0

    def __post_init__(self) -> None:
        self._check_count("size")
        self._check_count("min_size", optional=True)
        self._check_count("max_size", optional=True)
        self._check_number("interval", 0)


@dataclass(frozen=True, slots=True)
class EmptyQueuePolicy(_Policy):
    """How long a streaming loop waits after fetches that brought nothing; a full one starts the count anew."""

    backoff: float = 0.1
    backoff_multiplier: float = 2.0
    backoff_cap: float = 5.0

    def __post_init__(self) -> None:
        self._check_number("backoff", 0)
        self._check_number("backoff_multiplier", 1)
        self._check_number("backoff_cap", 0)

    def delay(self, empties: int) -> float:
        """Seconds to wait after so many empty fetches before this one (0 after the first)."""
        return exponential(self.backoff, self.backoff_multiplier, empties, self.backoff_cap)


@dataclass(frozen=True, slots=True)
class _StepPolicy(_Policy):
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self) -> None:
        self._check_policy("retry", RetryPolicy)


@dataclass(frozen=True, slots=True)
class ProcessPolicy(_StepPolicy):
    """`process_transaction`."""


@dataclass(frozen=True, slots=True)
class SuccessPolicy(_StepPolicy):
    """`handle_transaction_success`."""


@dataclass(frozen=True, slots=True)
class ExceptionPolicy(_StepPolicy):
    """`handle_transaction_exception`."""


@dataclass(frozen=True, slots=True)
class FetchPolicy(_Policy):
    """Fetching; `extra` is passed to the connector, as keyword arguments. Each fetch gets a copy of its own."""

    retry: RetryPolicy = RetryPolicy()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_policy("retry", RetryPolicy)
        if isinstance(self.extra, _Extra):
            return
        extra: object = self.extra
        if not isinstance(extra, Mapping) or not all(isinstance(key, str) for key in extra):
            raise PolicyError("FetchPolicy.extra must be a mapping with string keys")
        if "batch_size" in extra:
            raise PolicyError("FetchPolicy.extra cannot have 'batch_size': that is BatchPolicy.size")
        try:
            texts = {key: encode({key: value}) for key, value in sorted(extra.items())}
        except PayloadError as error:
            raise PolicyError(f"FetchPolicy.extra must be JSON: {error}") from error
        object.__setattr__(self, "extra", _Extra(texts))

    def to_dict(self) -> dict[str, Any]:
        return {"retry": self.retry.to_dict(), "extra": dict(self.extra)}


class _Extra(Mapping[str, Any]):
    """Kept as JSON text: whoever changes what he was given, nested or not, changes a copy."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, bytes]) -> None:
        self._texts = texts

    def __getitem__(self, key: str) -> Any:
        return decode(self._texts[key])[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __hash__(self) -> int:
        return hash(tuple(self._texts))  # of the keys: 1 and 1.0 are equal, and different texts

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class ConsumerSteps(_Policy):
    """A policy per step. Each has its own retries and none uses up another's."""

    fetch: FetchPolicy = field(default_factory=FetchPolicy)
    process: ProcessPolicy = ProcessPolicy()
    success: SuccessPolicy = SuccessPolicy()
    exception: ExceptionPolicy = ExceptionPolicy()

    def __post_init__(self) -> None:
        for name, kind in _STEPS.items():
            self._check_policy(name, kind)


_STEPS = {
    "fetch": FetchPolicy,
    "process": ProcessPolicy,
    "success": SuccessPolicy,
    "exception": ExceptionPolicy,
}


@dataclass(frozen=True, slots=True)
class ConsumerLoopPolicy(_Policy):
    """The loop: how much at once, for how long, how many, and what an empty fetch means."""

    batch: BatchPolicy = BatchPolicy()
    concurrency: ConcurrencyPolicy = ConcurrencyPolicy()
    timeout: float | None = None
    limit: int | None = None
    transaction_timeout: float | None = None
    streaming: bool = False
    empty_queue: EmptyQueuePolicy = EmptyQueuePolicy()
    strict_io: bool = False
    max_abandoned_threads: int = 16

    def __post_init__(self) -> None:
        self._check_policy("batch", BatchPolicy)
        self._check_policy("concurrency", ConcurrencyPolicy)
        self._check_policy("empty_queue", EmptyQueuePolicy)
        self._check_timeout("timeout")
        self._check_timeout("transaction_timeout")
        self._check_count("limit", optional=True)
        self._check_count("max_abandoned_threads", at_least=0)
        self._check_bool("streaming")
        self._check_bool("strict_io")


@dataclass(frozen=True, slots=True)
class ConsumerPolicy(_Policy):
    """Everything: the loop and the steps."""

    loop: ConsumerLoopPolicy = ConsumerLoopPolicy()
    steps: ConsumerSteps = field(default_factory=ConsumerSteps)

    def __post_init__(self) -> None:
        self._check_policy("loop", ConsumerLoopPolicy)
        self._check_policy("steps", ConsumerSteps)
