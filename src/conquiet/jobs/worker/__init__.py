"""The job worker: claims, runs, keeps alive and settles jobs."""

from conquiet.jobs.turns import Turns
from conquiet.jobs.worker.committer import WorkerCounts
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.heartbeat import Heartbeat
from conquiet.jobs.worker.outage import Outage
from conquiet.jobs.worker.plan import JobPlan, JobPlans
from conquiet.jobs.worker.worker import JobWorker

__all__ = ["Heartbeat", "JobContext", "JobPlan", "JobPlans", "JobWorker", "Outage", "Turns", "WorkerCounts"]
