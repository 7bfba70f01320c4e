"""A worker process on a job store: `python -m conquiet.verify.job_worker`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from conquiet.jobs import Job, JobContext, JobWorker, RetrySchedule, open_store
from conquiet.verify.history import History
from conquiet.verify.owner import PLACES, Owner, obey
from conquiet.verify.recording.jobs import record

__all__ = ["EFFECTS"]

EFFECTS = "conquiet_verify_effects"


class _ToldWorker(JobWorker):
    owner: Owner

    def stop(self) -> None:
        super().stop()
        self.owner.say("stop")


def work_on_jobs(order: dict[str, Any], owner: Owner) -> None:
    """The effect is a row, in the transaction of the acknowledgement: it must exist exactly once."""
    dsn, held = order["dsn"], order["held"]
    insert = f"INSERT INTO {EFFECTS} (job) VALUES ({'?' if dsn.startswith('sqlite') else '%s'})"  # noqa: S608
    retry = RetrySchedule(base_seconds=0.01, max_seconds=0.05)
    with (
        History(order["history"]) as history,
        open_store(dsn, retry=retry, max_lease_expiries=1_000) as store,
    ):
        backend = record(store, history)

        def handle(job: Job, context: JobContext) -> None:
            backend.begin_handling(job)
            owner.take_time(order, job.id)
            context.connection.execute(insert, (job.id,))

        worker = _ToldWorker(
            store,
            handle,
            queues=order["queue"],
            concurrency=1 if held else PLACES,
            prefetch=order["prefetch"],
            lease_ttl=order["lease_ttl"],
            handle_signals=True,
        )
        worker.owner = owner
        owner.say(json.dumps(asdict(worker.run())))


if __name__ == "__main__":
    obey({"jobs": work_on_jobs})
