"""Settings and arguments that are wrong are refused where they are given, by the package's own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conquiet.errors import ConquietError, LocalConfigError, PayloadError, ReconcileConfigError
from conquiet.local import Pace, PriorityDelayQueue, QueueSettings, Worker, WorkerPool
from conquiet.reconcile import IntakeRules, PlatformFetcher, ReconciliationJob, SimulatedAdapter

WRONG: Any = {"max_in_memory": 5}


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: IntakeRules(low_trust_below=3), ReconcileConfigError, "from 0 to 1"),
        (lambda: SimulatedAdapter(latency_seconds=-1), ReconcileConfigError, "latency_seconds"),
        (lambda: PlatformFetcher({"": SimulatedAdapter()}), ReconcileConfigError, "not empty"),
        (lambda: ReconciliationJob(WRONG), PayloadError, "integer affiliate_report_id"),
        (lambda: ReconciliationJob(1, attempt=0), PayloadError, "attempt from 1"),
        (lambda: PriorityDelayQueue(WRONG), LocalConfigError, "QueueSettings, not dict"),
        (lambda: Worker(WRONG, print), LocalConfigError, "PriorityDelayQueue, not dict"),
        (lambda: WorkerPool(WRONG, print, 2), LocalConfigError, "PriorityDelayQueue, not dict"),
        (lambda: Pace().asked("a", WRONG), LocalConfigError, "retry_after must be a number"),
        (lambda: Pace().asked("a", float("nan")), LocalConfigError, "retry_after must be a number"),
        (lambda: QueueSettings(priorities={"a": 10**400}), LocalConfigError, "'a' must be from"),
        (
            lambda: PriorityDelayQueue().enqueue(1, delay_seconds=1e12),
            LocalConfigError,
            r"at most 3162240000 \(a century\)",
        ),
    ],
)
def test_it_is_refused(call: Callable[[], object], error: type[ConquietError], part: str) -> None:
    with pytest.raises(error, match=part):
        call()
