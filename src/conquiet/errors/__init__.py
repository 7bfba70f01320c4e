"""Every exception that conquiet raises deliberately, as one tree.

The tree is organized by what the caller can do, whichever room raises the error. There are six families:

    ConquietError
    ├── ConfigError                            a setting or an argument was refused; nothing was done: correct it
    │   ├── PayloadError (ValueError)          the payload is not storable JSON
    │   ├── SettingsError (ValueError)         command: a setting is missing or refused; the flag to give is named
    │   ├── PolicyError (ValueError)           engine: a policy
    │   ├── TaskConfigError (TypeError)        engine: a task or a connector
    │   ├── AsyncCallableError (TypeError)     a function returns a coroutine or a generator, which nobody runs
    │   ├── IsolationConfigError (TypeError)   child process: a function or arguments that cannot be sent to it
    │   ├── JobConfigError (ValueError)        jobs
    │   │   └── TaskArgumentError (TypeError)  a task's function does not take these arguments
    │   ├── QueueConfigError (ValueError)      queue
    │   │   ├── QueueAccessError               ... Redis refuses the user, the password or the right to do this
    │   │   └── QueuePayloadError              ... a payload (also a PayloadError)
    │   ├── LocalConfigError (ValueError)      in-process queue
    │   │   └── UnknownPriorityError           ... a priority that is not in the settings
    │   ├── ReconcileConfigError (ValueError)  reconciliation: a rule, an adapter or an argument
    │   └── ReportRefusedError (ValueError)    reconciliation: a report that breaks the rules of the intake
    │       └── KeyReusedError                 ... with the idempotency key of another report
    ├── UnavailableError                       not reached, or busy; nothing was changed: try again later
    │   ├── StoreUnavailableError              jobs, reports: the database was not reached, is locked or full
    │   │   └── DamagedRowError                ... or a row not written by the store makes a statement fail
    │   ├── QueueConnectionError               queue: Redis was not reached, or the connection failed
    │   ├── QueueFullError                     in-process queue: it has reached its limit
    │   ├── IntakeBusyError                    reconciliation: no report can be taken in now
    │   ├── ServerError                        a private server did not start, or died: read its log
    │   └── OutcomeUnknownError                ... but a change was sent and may have happened: read, or repeat if safe
    │       ├── StoreOutcomeUnknownError       jobs, reports: no answer from the database
    │       ├── QueueOutcomeUnknownError       queue: no answer from Redis
    │       │   └── UnreplicatedEnqueueError   ... or too few replicas have confirmed the entries
    │       ├── QueueAnswerError               queue: the peer is not Redis
    │       ├── PartialEnqueueError            queue: only the first part of a bulk enqueue is confirmed
    │       ├── CallTimeoutError (TimeoutError) a call ran past its time limit
    │       └── ProcessDiedError               child process: it died before it answered
    ├── RefusedError                           the state does not allow it; nothing was changed
    │   ├── DuplicateJobError                  jobs: a job with that id exists
    │   ├── IllegalTransitionError             jobs: the state of the job does not allow it
    │   ├── SchemaVersionError                 jobs: the database has another schema version: migrate, or upgrade
    │   ├── StoreClosedError                   jobs: the store is closed, or belongs to the parent process: open a new one
    │   ├── QueueRefusedError                  queue: Redis refuses the command, or the object belongs to the parent process
    │   ├── MalformedEntryError                queue: malformed entries stay pending: repair, or acknowledge them
    │   ├── QueueShutdownError                 in-process queue: it accepts no more items
    │   ├── AttemptOrderError                  reconciliation: the attempt before this one is not recorded
    │   ├── AbandonedThreadsError              too many timed-out calls still hold their threads: restart the process
    │   └── ProcessCallsClosedError            child process: its `ProcessCalls` is closed
    ├── NotFoundError                          there is nothing with that id or name
    │   ├── JobNotFoundError (LookupError)     jobs
    │   ├── ReportNotFoundError (LookupError)  reconciliation
    │   └── UnknownNameError (LookupError)     command: a queue, stream or group; those that exist are named
    ├── LostError                              what the caller relied on is gone, or has another owner
    │   ├── StaleLeaseError                    jobs: the lease is no longer current; nothing was changed
    │   ├── LeaseLostError                     queue: another consumer has the entry, or it was acknowledged
    │   ├── GroupLostError                     queue: the stream or its group is gone: create it again once the loss is understood
    │   ├── DataLossError                      Spark source: entries were trimmed before they were read
    │   ├── ConsumerTakenError                 Spark source: another query has this consumer
    │   ├── StagingLostError                   Spark sinks: staged rows disappeared before they were published
    │   └── AbandonedCallError                 a call that was abandoned at its time limit tried to act

Outside the families are the roots of the rooms, which are not raised themselves, and errors that fit no family:

    ConquietError
    ├── JobError                               the root of jobs
    │   └── JobRejectedError                   raised *by* a handler: the job fails immediately, with no retry
    │       └── TaskMismatchError              ... code of another version is needed: given back before it fails
    ├── QueueError                             the root of the Redis Streams queue
    ├── LocalQueueError                        the root of the in-process queue
    ├── ReconcileError                         the root of the reconciliation
    │   └── PlatformError                      raised *by* adapters, for the fetcher: a platform gave no data
    │       ├── PlatformRateLimitError         ... it asks for fewer calls
    │       └── PlatformAuthError              ... it refuses the credentials
    ├── IsolationError                         the root of calls in a child process
    │   └── RemoteCallError                    the function itself raised, in its child process
    ├── ForeignError                           a handler or a Spark job run by the command failed
    ├── MissingDependencyError (ImportError)   a package or a program is missing: install it
    │   └── ServerNotFoundError                ... a server binary for `conquiet.embedded`
    └── FlowError                              a bug: a flow yielded something that is not an effect

The exceptions that tasks raise and that end consume loops are in `conquiet.task.exceptions`, below the same root and
families.

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
    QueueAccessError,
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
    TaskMismatchError,
    UnknownNameError,
    UnknownPriorityError,
    UnreplicatedEnqueueError,
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
    "QueueAccessError",
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
    "TaskMismatchError",
    "UnavailableError",
    "UnknownNameError",
    "UnknownPriorityError",
    "UnreplicatedEnqueueError",
    "redact",
]

for _name in __all__:
    if _name != "redact":
        globals()[_name].__module__ = __name__  # tracebacks and spans show the public module
