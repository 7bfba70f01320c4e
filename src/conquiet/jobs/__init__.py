"""Leased jobs: four states, fencing tokens, heartbeats, bounded retries; on PostgreSQL, SQLite and in memory."""

from conquiet.errors import (
    DuplicateJobError,
    IllegalTransitionError,
    JobConfigError,
    JobError,
    JobNotFoundError,
    JobRejectedError,
    OutcomeUnknownError,
    SchemaVersionError,
    StaleLeaseError,
    StoreUnavailableError,
)
from conquiet.jobs.execution import JobContext
from conquiet.jobs.model import (
    Attempt,
    Job,
    JobState,
    Lease,
    Nack,
    NewJob,
    QueueStats,
    RetrySchedule,
    SettleResult,
    StoreCapabilities,
)
from conquiet.jobs.store import AsyncJobStore, JobStore, migrate, migration_plan, open_async_store, open_store
from conquiet.jobs.worker import JobWorker
from conquiet.jobs.working import WorkerCounts
from conquiet.payload import PayloadLimits

__all__ = [
    "AsyncJobStore",
    "Attempt",
    "DuplicateJobError",
    "IllegalTransitionError",
    "Job",
    "JobConfigError",
    "JobContext",
    "JobError",
    "JobNotFoundError",
    "JobRejectedError",
    "JobState",
    "JobStore",
    "JobWorker",
    "Lease",
    "Nack",
    "NewJob",
    "OutcomeUnknownError",
    "PayloadLimits",
    "QueueStats",
    "RetrySchedule",
    "SchemaVersionError",
    "SettleResult",
    "StaleLeaseError",
    "StoreCapabilities",
    "StoreUnavailableError",
    "WorkerCounts",
    "migrate",
    "migration_plan",
    "open_async_store",
    "open_store",
]
