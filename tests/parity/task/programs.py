"""Random scripts and policies for hypothesis, on a time grid where no two competing events coincide.

Calls take multiples of 4 s. Limits are off that grid: a step's by 2 s, a transaction's by 1 s, the loop's by 0.25 s.
So one event always comes first, and nothing else ends within half a second after the loop's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from conquiet.task.mixins.policies import ConsumerPolicy, EmptyQueuePolicy, RetryPolicy
from tests.parity.task.script import Act, Script, policy

_LONG = 400.0  # longer than any limit

_TAKES = (0.0, 4.0, 0.0, 8.0, 0.0, 16.0, _LONG)
_FAILURES = (
    "BUSINESS",
    "SYSTEM",
    "TIMEOUT",
    "ValueError",
    "TimeoutError",
    "CancelledError",
    "CallTimeoutError",
    "SystemExit",
)
_FETCH_FAILURES = ("ValueError", "TimeoutError", "BUSINESS", "TIMEOUT", "CallTimeoutError")


def _acts(*values: object) -> st.SearchStrategy[tuple[Act, ...]]:
    # One choice from a list of all acts: drawing each part separately would take longer than the runs.
    good = [Act(takes, value) for value in values for takes in _TAKES]
    bad = [Act(takes, raises=name) for name in _FAILURES for takes in _TAKES]
    good *= max(1, len(bad) // len(good) // 2)
    return st.lists(st.sampled_from(good + bad), max_size=4).map(tuple)


_process = _acts("x", "y", None)
_handler = _acts(None)
_takes = st.sampled_from(_TAKES)
_fetch_failures = st.lists(
    st.sampled_from([Act(takes, raises=name) for name in _FETCH_FAILURES for takes in _TAKES]), max_size=2
)
_retries = st.sampled_from(
    [
        RetryPolicy(*fields)
        for fields in product(
            (1, 2, 3, 4), (None, 6.0, 10.0, 18.0), (0.0, 4.0, 8.0), (1.0, 2.0, 3.0), (0.0, 12.0, 20.0)
        )
    ]
)
_empty_queues = st.sampled_from(
    [EmptyQueuePolicy(*fields) for fields in product((4.0, 8.0), (1.0, 2.0, 3.0), (0.0, 12.0))]
)


@dataclass(frozen=True)
class Program:
    script: Script
    policy: ConsumerPolicy


@st.composite
def programs(draw: st.DrawFn, *, most_workers: int = 1) -> Program:
    size = draw(st.integers(1, 4))
    # Sometimes one more than was asked for, which breaks the contract.
    counts = draw(st.lists(st.sampled_from([1, size, 0, size, 1, size, size + 1]), max_size=3))
    fetches: list[Act] = []
    steps: dict[str, tuple[Act, ...]] = {}
    ids = 0
    for count in counts:
        if draw(st.booleans()):
            fetches += draw(_fetch_failures)
        names = [f"t{ids + number}" for number in range(count)]
        ids += count
        fetches.append(Act(draw(_takes), " ".join(names)))
        for name in names:
            steps[f"{name} process"] = draw(_process)
            steps[f"{name} success"] = draw(_handler)
            steps[f"{name} exception"] = draw(_handler)
    streaming = most_workers == 1 and draw(st.booleans())
    # With several workers the end of the loop would cut each off at a different time, which is not modelled.
    timeout = draw(st.sampled_from([None, 0.25, 12.25, 60.25, 500.25])) if most_workers == 1 else None
    if streaming and timeout is None:
        timeout = 120.25
    return Program(
        Script(tuple(fetches), steps),
        policy(
            process=draw(_retries),
            success=draw(_retries),
            exception=draw(_retries),
            fetch=draw(_retries),
            batch=size,
            concurrency=draw(st.integers(min(2, most_workers), most_workers)),
            streaming=streaming,
            timeout=timeout,
            limit=draw(st.sampled_from([None, None, 1, 3, 7])),
            transaction_timeout=draw(st.sampled_from([None, None, 1.0, 9.0, 33.0, 101.0])),
            empty_queue=draw(_empty_queues),
        ),
    )
