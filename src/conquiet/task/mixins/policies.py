"""Policies of the engine, as immutable data that is checked when it is created.

All durations are in seconds. Only the engine reads policies; tasks and connectors never see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from conquiet.backoff import exponential
from conquiet.errors import PayloadError, PolicyError
from conquiet.payload import decode, encode
from conquiet.task.policy_data import PolicyData

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


@dataclass(frozen=True, slots=True)
class RetryPolicy(PolicyData):
    """How often a step is attempted (including the first time), for how long, and how long to wait in between.

    The wait before retry k (0 after the first failure) is `backoff * backoff_multiplier ** k`, at most
    `backoff_cap` if that is above 0. There is no jitter: the engine is deterministic.
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
        """Seconds to wait before the next attempt; `failures` is 0 after the first failure."""
        return exponential(self.backoff, self.backoff_multiplier, failures, self.backoff_cap)


@dataclass(frozen=True, slots=True)
class ConcurrencyPolicy(PolicyData):
    """The maximum number of transactions in flight; `min` and `max` bound `value`."""

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
class BatchPolicy(PolicyData):
    """How many transactions one fetch requests. The other fields are reserved."""

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
class EmptyQueuePolicy(PolicyData):
    """How long a streaming loop waits after empty fetches; the next batch resets the count."""

    backoff: float = 0.1
    backoff_multiplier: float = 2.0
    backoff_cap: float = 5.0

    def __post_init__(self) -> None:
        self._check_number("backoff", 0)
        self._check_number("backoff_multiplier", 1)
        self._check_number("backoff_cap", 0)

    def delay(self, empties: int) -> float:
        """Seconds to wait before the next fetch; `empties` is 0 after the first empty one."""
        return exponential(self.backoff, self.backoff_multiplier, empties, self.backoff_cap)


@dataclass(frozen=True, slots=True)
class _StepPolicy(PolicyData):
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
class FetchPolicy(PolicyData):
    """The policy of fetching. Each fetch passes a copy of `extra` to the connector as keyword arguments."""

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
    """Stored as JSON text, so that each reader gets its own copy, including nested values."""

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
        return hash(tuple(self._texts))  # only the keys: 1 and 1.0 are equal but have different texts

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class ConsumerSteps(PolicyData):
    """A policy per step. Each has its own attempts."""

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
class ConsumerLoopPolicy(PolicyData):
    """The policy of the loop: batch size, concurrency, time limits, and the waits after an empty fetch."""

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
class ConsumerPolicy(PolicyData):
    """The whole policy: the loop and the steps."""

    loop: ConsumerLoopPolicy = ConsumerLoopPolicy()
    steps: ConsumerSteps = field(default_factory=ConsumerSteps)

    def __post_init__(self) -> None:
        self._check_policy("loop", ConsumerLoopPolicy)
        self._check_policy("steps", ConsumerSteps)
