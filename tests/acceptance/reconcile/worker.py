"""A program: reconciles from leased jobs until it is killed.

python worker.py REPORTS_DSN JOBS_DSN
"""

from __future__ import annotations

import sys

from conquiet.connectors import JobConnector
from conquiet.jobs import open_store
from conquiet.reconcile import PlatformFetcher, ReconciliationTask, SimulatedAdapter, open_database
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    EmptyQueuePolicy,
)
from conquiet.testing import ManualClock

QUEUE = "reconciliation"
POLICY = ConsumerPolicy(
    loop=ConsumerLoopPolicy(
        batch=BatchPolicy(size=8),
        concurrency=ConcurrencyPolicy(value=3),
        streaming=True,
        empty_queue=EmptyQueuePolicy(backoff=0.02, backoff_cap=0.1),
    )
)


def adapter() -> SimulatedAdapter:
    return SimulatedAdapter(20260131, missing_field_rate=0.08, unknown_post_rate=0.05)


def main(reports: str, jobs: str) -> None:
    clock = ManualClock()  # stands still: every attempt is made at the same time, in every process
    fetcher = PlatformFetcher({"sim": adapter()}, clock=clock)
    task = ReconciliationTask(fetcher, open_database(reports), clock=clock)
    with open_store(jobs) as store:
        task.consume_transactions(JobConnector(store, QUEUE, lease_ttl=1.0), POLICY)


if __name__ == "__main__":
    main(*sys.argv[1:])
