"""Leased jobs: four states, fencing tokens, heartbeats, bounded retries; on PostgreSQL, SQLite and in memory."""

from conquiet.errors import (
    DuplicateJobError,
    IllegalTransitionError,
    JobConfigError,
    JobError,
    JobNotFoundError,
    JobRejectedError,
    SchemaVersionError,
    StaleLeaseError,
    StoreClosedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    TaskMismatchError,
)
from conquiet.jobs.model import (
    Attempt,
    Job,
    JobPage,
    JobState,
    Lease,
    Nack,
    NewJob,
    QueueStats,
    SettleResult,
    StoreCapabilities,
)
from conquiet.jobs.opening import migrate, migration_plan, open_async_store, open_store
from conquiet.jobs.retry import RetrySchedule
from conquiet.jobs.store import AsyncJobStore, JobStore, default_worker
from conquiet.jobs.transitions import TRANSITIONS, Transition, targets
from conquiet.jobs.worker import JobContext, JobPlan, JobPlans, JobWorker, WorkerCounts
from conquiet.payload import PayloadLimits

__all__ = [
    "TRANSITIONS",
    "AsyncJobStore",
    "Attempt",
    "DuplicateJobError",
    "IllegalTransitionError",
    "Job",
    "JobConfigError",
    "JobContext",
    "JobError",
    "JobNotFoundError",
    "JobPage",
    "JobPlan",
    "JobPlans",
    "JobRejectedError",
    "JobState",
    "JobStore",
    "JobWorker",
    "Lease",
    "Nack",
    "NewJob",
    "PayloadLimits",
    "QueueStats",
    "RetrySchedule",
    "SchemaVersionError",
    "SettleResult",
    "StaleLeaseError",
    "StoreCapabilities",
    "StoreClosedError",
    "StoreOutcomeUnknownError",
    "StoreUnavailableError",
    "TaskMismatchError",
    "Transition",
    "WorkerCounts",
    "default_worker",
    "migrate",
    "migration_plan",
    "open_async_store",
    "open_store",
    "targets",
]
