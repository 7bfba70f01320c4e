"""Every exception that conquiet raises on purpose, as one tree.

The tree is cut by what the caller can do, whichever room raises the error. Six families say so:

    ConquietError
    ├── ConfigError                            a setting or an argument was refused; nothing was done: correct it
    │   ├── PayloadError (ValueError)          the payload is not storable JSON
    │   ├── SettingsError (ValueError)         command: a setting is missing or refused; the flag to give is named
    │   ├── PolicyError (ValueError)           engine: a policy
    │   ├── TaskConfigError (TypeError)        engine: a task or a connector
    │   ├── AsyncCallableError (TypeError)     threads: a function gives a coroutine, which nobody would await
    │   ├── IsolationConfigError (TypeError)   child process: a function or arguments that cannot be sent to one
    │   ├── JobConfigError (ValueError)        jobs
    │   │   └── TaskArgumentError (TypeError)  a task's function does not take these arguments
    │   ├── QueueConfigError (ValueError)      queue
    │   │   └── QueuePayloadError              ... a payload (also a PayloadError)
    │   ├── LocalConfigError (ValueError)      in-process queue
    │   │   └── UnknownPriorityError           ... a priority that the settings do not have
    │   ├── ReconcileConfigError (ValueError)  reconciliation: a rule, an adapter or an argument
    │   └── ReportRefusedError (ValueError)    reconciliation: a report that breaks the rules of the intake
    │       └── KeyReusedError                 ... with the idempotency key of another report
    ├── UnavailableError                       not reached, or not now; nothing was changed: try again later
    │   ├── StoreUnavailableError              jobs, reports: the database was not reached, is locked or full
    │   │   └── DamagedRowError                ... or a row that was written past the store makes a statement fail
    │   ├── QueueConnectionError               queue: Redis was not reached, or the connection failed
    │   ├── QueueFullError                     in-process queue: it holds as many items as it may
    │   ├── IntakeBusyError                    reconciliation: no report can be taken in now
    │   ├── ServerError                        a private server did not start, or died: read its log
    │   └── OutcomeUnknownError                ... but a change was sent: it may have happened: read, or repeat if safe
    │       ├── StoreOutcomeUnknownError       jobs, reports: no answer from the database
    │       ├── QueueOutcomeUnknownError       queue: no answer from Redis
    │       ├── QueueAnswerError               queue: what answered is not Redis
    │       ├── PartialEnqueueError            queue: only the first part of a bulk enqueue is known to be in
    │       ├── CallTimeoutError (TimeoutError) a call ran past its time limit
    │       └── ProcessDiedError               child process: it died before it answered
    ├── RefusedError                           the state does not allow it; nothing was changed
    │   ├── DuplicateJobError                  jobs: a job with that id exists
    │   ├── IllegalTransitionError             jobs: the job is in another state
    │   ├── SchemaVersionError                 jobs: the database has another schema version: migrate, or upgrade
    │   ├── StoreClosedError                   jobs: the store is closed, or the parent process's: open a new one
    │   ├── QueueRefusedError                  queue: Redis refuses the command, or the object is the parent process's
    │   ├── MalformedEntryError                queue: entries break the format and stay pending: repair, acknowledge
    │   ├── QueueShutdownError                 in-process queue: it takes no more items
    │   ├── AttemptOrderError                  reconciliation: the attempt before this one is not recorded
    │   ├── AbandonedThreadsError              too many timed-out calls still hold their threads: restart the process
    │   └── ProcessCallsClosedError            child process: its `ProcessCalls` is closed
    ├── NotFoundError                          there is nothing with that id or name
    │   ├── JobNotFoundError (LookupError)     jobs
    │   ├── ReportNotFoundError (LookupError)  reconciliation
    │   └── UnknownNameError (LookupError)     command: a queue, stream or group; those that exist are named
    ├── LostError                              what the caller relied on is gone, or another's by now
    │   ├── StaleLeaseError                    jobs: the lease is not current any more; nothing was changed
    │   ├── LeaseLostError                     queue: the entry is another consumer's, or was acknowledged
    │   ├── GroupLostError                     queue: the stream or its group is gone: create it, knowing what was lost
    │   ├── DataLossError                      Spark source: entries were trimmed before they were read
    │   ├── ConsumerTakenError                 Spark source: another query reads under this consumer's name
    │   ├── StagingLostError                   Spark sinks: staged rows are gone before they were published
    │   └── AbandonedCallError                 a call that was given up at its time limit acted once more

Outside of the families are the roots of the rooms, which are not raised themselves, and what has no such answer:

    ConquietError
    ├── JobError                               the root of jobs
    │   └── JobRejectedError                   raised *by* a handler: the job is Failed at once, with no retry
    ├── QueueError                             the root of the Redis Streams queue
    ├── LocalQueueError                        the root of the in-process queue
    ├── ReconcileError                         the root of the reconciliation
    │   └── PlatformError                      raised *by* adapters, for the fetcher: a platform gave no numbers
    │       ├── PlatformRateLimitError         ... it asks for fewer calls
    │       └── PlatformAuthError              ... it refuses the credentials
    ├── IsolationError                         the root of calls in a child process
    │   └── RemoteCallError                    the function itself raised, in its child process
    ├── ForeignError                           a handler or a Spark job that the command runs has failed
    ├── MissingDependencyError (ImportError)   the installation: a package or a program is missing: install it
    │   └── ServerNotFoundError                ... a server binary for `conquiet.embedded`
    └── FlowError                              a bug: a flow yielded something that is not an effect

What a task raises and what a consume loop ends with is in `conquiet.task.exceptions`, below the same root and families.

No message contains a secret: text that may contain a DSN goes through `redact` first.
"""

from __future__ import annotations

from conquiet.errors.families import (
    AccessProblem,
    ConfigError,
    ConquietError,
    LostError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
)
from conquiet.errors.rooms import (
    AbandonedCallError,
    AbandonedThreadsError,
    AsyncCallableError,
    AttemptOrderError,
    CallTimeoutError,
    ConsumerTakenError,
    DamagedRowError,
    DataLossError,
    DuplicateJobError,
    FlowError,
    ForeignError,
    GroupLostError,
    IllegalTransitionError,
    IntakeBusyError,
    IsolationConfigError,
    IsolationError,
    JobConfigError,
    JobError,
    JobNotFoundError,
    JobRejectedError,
    KeyReusedError,
    LeaseLostError,
    LocalConfigError,
    LocalQueueError,
    MalformedEntryError,
    MissingDependencyError,
    PartialEnqueueError,
    PayloadError,
    PlatformAuthError,
    PlatformError,
    PlatformRateLimitError,
    PolicyError,
    ProcessCallsClosedError,
    ProcessDiedError,
    QueueAnswerError,
    QueueConfigError,
    QueueConnectionError,
    QueueError,
    QueueFullError,
    QueueOutcomeUnknownError,
    QueuePayloadError,
    QueueRefusedError,
    QueueShutdownError,
    ReconcileConfigError,
    ReconcileError,
    RemoteCallError,
    ReportNotFoundError,
    ReportRefusedError,
    SchemaVersionError,
    ServerError,
    ServerNotFoundError,
    SettingsError,
    StagingLostError,
    StaleLeaseError,
    StoreClosedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    TaskArgumentError,
    TaskConfigError,
    UnknownNameError,
    UnknownPriorityError,
)
from conquiet.redaction import redact

__all__ = [
    "AbandonedCallError",
    "AbandonedThreadsError",
    "AccessProblem",
    "AsyncCallableError",
    "AttemptOrderError",
    "CallTimeoutError",
    "ConfigError",
    "ConquietError",
    "ConsumerTakenError",
    "DamagedRowError",
    "DataLossError",
    "DuplicateJobError",
    "FlowError",
    "ForeignError",
    "GroupLostError",
    "IllegalTransitionError",
    "IntakeBusyError",
    "IsolationConfigError",
    "IsolationError",
    "JobConfigError",
    "JobError",
    "JobNotFoundError",
    "JobRejectedError",
    "KeyReusedError",
    "LeaseLostError",
    "LocalConfigError",
    "LocalQueueError",
    "LostError",
    "MalformedEntryError",
    "MissingDependencyError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PartialEnqueueError",
    "PayloadError",
    "PlatformAuthError",
    "PlatformError",
    "PlatformRateLimitError",
    "PolicyError",
    "ProcessCallsClosedError",
    "ProcessDiedError",
    "QueueAnswerError",
    "QueueConfigError",
    "QueueConnectionError",
    "QueueError",
    "QueueFullError",
    "QueueOutcomeUnknownError",
    "QueuePayloadError",
    "QueueRefusedError",
    "QueueShutdownError",
    "ReconcileConfigError",
    "ReconcileError",
    "RefusedError",
    "RemoteCallError",
    "ReportNotFoundError",
    "ReportRefusedError",
    "SchemaVersionError",
    "ServerError",
    "ServerNotFoundError",
    "SettingsError",
    "StagingLostError",
    "StaleLeaseError",
    "StoreClosedError",
    "StoreOutcomeUnknownError",
    "StoreUnavailableError",
    "TaskArgumentError",
    "TaskConfigError",
    "UnavailableError",
    "UnknownNameError",
    "UnknownPriorityError",
    "redact",
]

for _name in __all__:
    if _name != "redact":
        globals()[_name].__module__ = __name__  # tracebacks and spans name the front door
