"""How a job is run is looked up once."""

from __future__ import annotations

import pytest

from conquiet.jobs import (
    Job,
    JobPlan,
    JobPlans,
    JobRejectedError,
    JobState,
    JobWorker,
    RetrySchedule,
    open_store,
)


class Plans(JobPlans):
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ran: list[str] = []

    def plan(self, job: Job) -> JobPlan:
        self.asked.append(job.payload["what"])
        if job.payload["what"] == "unknown":
            raise JobRejectedError("nobody runs this")
        return JobPlan(self.run, timeout=60.0, retry=RetrySchedule(3, 1e6, 1e6))

    def run(self, job: Job) -> None:
        self.ran.append(job.payload["what"])
        if job.payload["what"] == "fails":
            raise ValueError


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_the_plan_of_a_job_is_asked_for_once(isolation: str) -> None:
    plans = Plans()
    with open_store("memory://") as store:
        store.enqueue_many("q", [{"what": what} for what in ("works", "fails", "unknown")])
        counts = JobWorker(store, plans, queues="q", isolation=isolation).run_until_idle()
        assert (counts.succeeded, counts.failed) == (1, 2)
        assert sorted(plans.asked) == ["fails", "unknown", "works"]
        assert sorted(plans.ran) == ["fails", "works"]
        works, fails, unknown = store.list()
        assert [job.state for job in (works, fails, unknown)] == [
            JobState.SUCCEEDED,
            JobState.READY,
            JobState.FAILED,
        ]
        assert fails.retry_at is not None
        assert (fails.retry_at - fails.enqueued_at).total_seconds() > 100  # as the plan's schedule says
        assert unknown.error == "nobody runs this"
