"""What tasks and connectors do in a scenario, as data: the same script runs on threads and on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conquiet.errors import CallTimeoutError
from conquiet.task.exceptions import ExceptionCategory, FetchException, TransactionException
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ExceptionPolicy,
    FetchPolicy,
    ProcessPolicy,
    RetryPolicy,
    SuccessPolicy,
)


class Boom(BaseException):
    """An exception that `except Exception` does not catch."""


def _categorised(category: ExceptionCategory) -> Callable[[], BaseException]:
    return lambda: TransactionException(f"a {category} failure", category)


ERRORS: dict[str, Callable[[], BaseException]] = {
    **{str(category): _categorised(category) for category in ExceptionCategory},
    "ValueError": lambda: ValueError("no such value"),
    "TimeoutError": lambda: TimeoutError("the task's own"),
    "CallTimeoutError": lambda: CallTimeoutError("an inner call's"),
    "CancelledError": asyncio.CancelledError,
    "FetchException": lambda: FetchException("the connector's own"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "Boom": Boom,
}


@dataclass(frozen=True)
class Act:
    """One call of a task or a connector: it takes virtual seconds, then returns, or raises an error by name."""

    takes: float = 0.0
    returns: Any = None
    raises: str | None = None
    stops: bool = False  # calls stop() first


def ok(returns: Any = None, takes: float = 0.0) -> Act:
    return Act(takes, returns)


def bad(raises: str, takes: float = 0.0) -> Act:
    return Act(takes, raises=raises)


Acts = tuple[Act, ...]


@dataclass(frozen=True)
class Script:
    """Every call, in order. A call that is not scripted succeeds immediately."""

    fetches: Acts = ()  # `returns` is the ids, "a b"; a fetch that is not scripted returns nothing
    steps: Mapping[str, Acts] = field(default_factory=dict)  # by "id step"
    settles: Acts = ()  # `returns` is the refused ids, "a b"
    shows: Acts = ()  # on_outcome
    releases: Acts = ()
    interrupt_at: float | None = None  # when the caller interrupts: Ctrl-C on a thread, cancel() on asyncio

    def act(self, name: str, number: int) -> Act:
        acts = {
            "fetch": self.fetches,
            "settle": self.settles,
            "show": self.shows,
            "release": self.releases,
        }.get(name, self.steps.get(name, ()))
        if number < len(acts):
            return acts[number]
        tx_id, _, step = name.partition(" ")
        return Act(returns=f"{tx_id}!" if step == "process" else None)


def retry(
    attempts: int = 1,
    timeout: float | None = None,
    backoff: float = 0.0,
    multiplier: float = 2.0,
    cap: float = 0.0,
) -> RetryPolicy:
    return RetryPolicy(attempts, timeout, backoff, multiplier, cap)


_ONCE = RetryPolicy()


def policy(
    *,
    process: RetryPolicy = _ONCE,
    success: RetryPolicy = _ONCE,
    exception: RetryPolicy = _ONCE,
    fetch: RetryPolicy = _ONCE,
    extra: Mapping[str, Any] | None = None,
    batch: int = 1,
    concurrency: int = 1,
    **loop: Any,
) -> ConsumerPolicy:
    """A policy on one line; `loop` is the rest of ConsumerLoopPolicy."""
    # Only the thread variant has a bound on abandoned threads: it must not affect the comparison.
    loop.setdefault("max_abandoned_threads", 10_000)
    return ConsumerPolicy(
        ConsumerLoopPolicy(BatchPolicy(batch), ConcurrencyPolicy(concurrency), **loop),
        ConsumerSteps(
            FetchPolicy(fetch, extra or {}),
            ProcessPolicy(process),
            SuccessPolicy(success),
            ExceptionPolicy(exception),
        ),
    )
