"""Every exception that conquiet raises, as one tree.

Families are cut by what the caller can do, not by which module noticed:

    ConquietError
    ├── PayloadError (ValueError)            the payload is not storable JSON: change it
    ├── MissingDependencyError (ImportError) a package or program is not installed: install it
    │   └── ServerNotFoundError              no usable server binary for `conquiet.embedded`
    ├── SettingsError (ValueError)           a setting of the command line is missing or refused: the flag to give is named
    ├── UnknownNameError (LookupError)       no queue, stream or group has that name: those that exist are named
    ├── ServerError                          a private server did not start, or died: read its log
    ├── CallTimeoutError (TimeoutError)      a call ran past its time limit
    ├── AbandonedCallError                   a timed-out call came back and touched what is no longer its own
    ├── AbandonedThreadsError                too many timed-out calls still hold their threads: restart the process
    ├── IsolationError                       a call cannot run in a child process, or its process died
    │   └── RemoteCallError                  the call itself failed, in its child process
    ├── PolicyError (ValueError)             a policy of the Consumer Engine was refused: correct it
    ├── TaskConfigError (TypeError)          a task or a connector cannot be run as it is: change it
    ├── FlowError                            a flow yielded something that is not an effect: a bug
    ├── JobError                             anything the leased job store cannot do
    │   ├── JobConfigError (ValueError)      a setting or an argument was refused: correct it
    │   │   └── TaskArgumentError (TypeError) a task's function does not take these arguments; nothing was queued
    │   ├── JobRejectedError                 raised by a handler: the job is Failed at once, with no retry
    │   ├── DuplicateJobError                a job with that id exists; nothing was enqueued
    │   ├── StaleLeaseError                  the lease is not current any more; nothing was changed
    │   ├── IllegalTransitionError           the job's state does not allow that; nothing was changed
    │   ├── JobNotFoundError (LookupError)   no job has that id
    │   ├── SchemaVersionError               the database has another schema version: migrate, or upgrade
    │   └── StoreUnavailableError            the store was not reached, or refused for now: nothing was changed
    │       └── OutcomeUnknownError          the connection broke before the answer: read the job to find out
    ├── StagingLostError                     rows that Spark staged are gone before they were published: write them again
    ├── ReconcileError                       anything the reconciliation cannot do
    │   ├── ReconcileConfigError (ValueError) a rule, an adapter or an argument was refused: correct it
    │   ├── ReportRefusedError (ValueError)  a report breaks the rules of the intake; nothing was stored
    │   │   └── KeyReusedError               its idempotency key belongs to another report
    │   ├── IntakeBusyError                  no report can be taken in now; nothing was stored: try again later
    │   ├── ReportNotFoundError (LookupError) no report has that id
    │   ├── AttemptOrderError                an attempt was asked for whose predecessor is not recorded
    │   └── PlatformError                    a platform did not give its numbers; raised by adapters
    │       ├── PlatformRateLimitError       not now: it asks for fewer calls
    │       └── PlatformAuthError            not to us: its credentials are wrong or lack a right
    ├── LocalQueueError                      anything the in-process queue cannot do; nothing was enqueued
    │   ├── LocalConfigError (ValueError)    a setting or an argument was refused: correct it
    │   │   └── UnknownPriorityError         the settings have no priority of that name: use one they have
    │   ├── QueueFullError                   as many items as it may hold: try again later
    │   └── QueueShutdownError               it takes no more items: enqueue before `shutdown()`
    └── QueueError                           anything the Redis Streams queue cannot do; the Redis error is its cause
        ├── QueueConfigError (ValueError)    a setting or an argument was refused before Redis was called: correct it
        │   └── QueuePayloadError (PayloadError)  so was this payload: nothing was sent
        ├── QueueConnectionError             Redis was not reached, or the answer did not arrive
        ├── PartialEnqueueError              only the first part of a bulk enqueue is known to be in the stream
        ├── GroupLostError                   the stream or its consumer group is gone: create it, knowing what was lost
        ├── LeaseLostError                   the entry belongs to another consumer by now, or was acknowledged
        ├── DataLossError                    entries were trimmed before they were read: stop that, or go on without
        └── MalformedEntryError              entries break the format; they stay pending: look, repair, acknowledge

What a task raises and a consume loop ends with is in `conquiet.task.exceptions`, below the same root.

No message carries a secret: text that may hold a DSN goes through `redact` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conquiet.redaction import redact

__all__ = [
    "AbandonedCallError",
    "AbandonedThreadsError",
    "AttemptOrderError",
    "CallTimeoutError",
    "ConquietError",
    "DataLossError",
    "DuplicateJobError",
    "FlowError",
    "GroupLostError",
    "IllegalTransitionError",
    "IntakeBusyError",
    "IsolationError",
    "JobConfigError",
    "JobError",
    "JobNotFoundError",
    "JobRejectedError",
    "KeyReusedError",
    "LeaseLostError",
    "LocalConfigError",
    "LocalQueueError",
    "MalformedEntryError",
    "MissingDependencyError",
    "OutcomeUnknownError",
    "PartialEnqueueError",
    "PayloadError",
    "PlatformAuthError",
    "PlatformError",
    "PlatformRateLimitError",
    "PolicyError",
    "QueueConfigError",
    "QueueConnectionError",
    "QueueError",
    "QueueFullError",
    "QueuePayloadError",
    "QueueShutdownError",
    "ReconcileConfigError",
    "ReconcileError",
    "RemoteCallError",
    "ReportNotFoundError",
    "ReportRefusedError",
    "SchemaVersionError",
    "ServerError",
    "ServerNotFoundError",
    "SettingsError",
    "StagingLostError",
    "StaleLeaseError",
    "StoreUnavailableError",
    "TaskArgumentError",
    "TaskConfigError",
    "UnknownNameError",
    "UnknownPriorityError",
    "redact",
]


class ConquietError(Exception):
    """The root: `except ConquietError` catches whatever this package raises on purpose."""


class PayloadError(ConquietError, ValueError):
    """A payload that breaks the one JSON rule (`conquiet.payload`). Nothing was sent or stored."""


class MissingDependencyError(ConquietError, ImportError):
    """Something optional is needed and not installed; the message holds the command that installs it."""


class ServerNotFoundError(MissingDependencyError):
    """No binary of a supported version was found for an embedded server."""


class SettingsError(ConquietError, ValueError):
    """A setting of the command line is missing, or is not what it has to be. Nothing was done."""


class UnknownNameError(ConquietError, LookupError):
    """There is no queue, stream or consumer group of that name, and the command would not make one."""


class ServerError(ConquietError):
    """An embedded server did not become ready, or ended by itself; the message ends with its log."""


class CallTimeoutError(ConquietError, TimeoutError):
    """A call ran past its time limit. On a thread the call may still be running; see `flow.isolation`."""


class AbandonedCallError(ConquietError):
    """A call that had been given up after its time limit tried to act for its caller again."""


class AbandonedThreadsError(ConquietError):
    """As many timed-out calls as are allowed still hold their threads; no further timed call is started.

    From the Consumer Engine it has a `report`, as every error that ends a consume loop.
    """

    report: Any = None


class IsolationError(ConquietError):
    """A call could not be run in a child process, or the child died before it answered."""


class RemoteCallError(IsolationError):
    """The call raised inside its child process; `error_type` and `remote_traceback` say what and where."""

    def __init__(self, error_type: str, message: str, remote_traceback: str = "") -> None:
        super().__init__(f"{error_type}: {message}" if message else error_type)
        self.error_type = error_type
        self.error_message = message
        self.remote_traceback = remote_traceback


class PolicyError(ConquietError, ValueError):
    """A policy with a value that makes no sense, or a key that does not exist. Nothing was run."""


class TaskConfigError(ConquietError, TypeError):
    """A task or a connector lacks what the Consumer Engine needs, or has it in the wrong form. Nothing was run."""


class FlowError(ConquietError):
    """A flow broke the rules of the effect core."""


class JobError(ConquietError):
    """The leased job store could not do what it was asked."""


class JobConfigError(JobError, ValueError):
    """A refused setting or argument. The store was not called."""


class TaskArgumentError(JobConfigError, TypeError):
    """Arguments that the task's function would refuse. Nothing was queued."""


class JobRejectedError(JobError):
    """A handler says that trying again is of no use: the job is Failed at once, whatever retries it has left."""


class DuplicateJobError(JobError):
    """Jobs with these `ids` exist already. Nothing was enqueued."""

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class StaleLeaseError(JobError):
    """The token is not the job's current one, or its lease has expired. Nothing was changed."""


class IllegalTransitionError(JobError):
    """The job is in a state from which that move does not exist. Nothing was changed."""


class JobNotFoundError(JobError, LookupError):
    """There is no job with that id."""


class SchemaVersionError(JobError):
    """The database's schema is older or newer than this release of conquiet expects."""


class StoreUnavailableError(JobError):
    """The store was not reached or refused for now (no connection, locked, full). Nothing was changed."""


class OutcomeUnknownError(StoreUnavailableError):
    """The connection broke after a change was sent and before the answer came: it may have happened.

    Of an enqueue, `ids` are those of the jobs in question: enqueueing them again with these ids and
    `on_duplicate="skip"` is safe.
    """

    ids: tuple[str, ...] = ()


class StagingLostError(ConquietError):
    """Rows that a Spark sink had staged for a batch are not there any more. They were not published."""


class ReconcileError(ConquietError):
    """The reconciliation could not do what it was asked."""


class ReconcileConfigError(ReconcileError, ValueError):
    """A refused rule, adapter setting or argument. Nothing was fetched or stored."""


class ReportRefusedError(ReconcileError, ValueError):
    """A report that breaks the rules of the intake; `field` is the part that does, if it is one. Nothing was stored."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class KeyReusedError(ReportRefusedError):
    """An idempotency key came again, with another report than the first time."""


class IntakeBusyError(ReconcileError):
    """The queue is full or shut down, or the affiliate too fast (`code`). Try again in `retry_after` seconds."""

    def __init__(self, code: str, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class ReportNotFoundError(ReconcileError, LookupError):
    """There is no report with that id."""


class AttemptOrderError(ReconcileError):
    """An attempt whose predecessor is not recorded. Nothing was changed."""


class PlatformError(ReconcileError):
    """A platform could not be asked, or answered with something that is no answer."""


class PlatformRateLimitError(PlatformError):
    """The platform wants fewer calls; `retry_after` is what it asked to wait, in seconds, if it said."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PlatformAuthError(PlatformError):
    """The platform refused our credentials. Asking again with the same ones is of no use."""


class LocalQueueError(ConquietError):
    """The in-process queue could not do what it was asked. Nothing was enqueued."""


class LocalConfigError(LocalQueueError, ValueError):
    """A refused setting or argument."""


class UnknownPriorityError(LocalConfigError):
    """The queue's settings have no priority with that label."""


class QueueFullError(LocalQueueError):
    """The queue holds `depth` items, as many as it may. Room comes as its workers take some."""

    def __init__(self, message: str, depth: int) -> None:
        super().__init__(message)
        self.depth = depth


class QueueShutdownError(LocalQueueError):
    """The queue was shut down and accepts nothing more."""


class QueueError(ConquietError):
    """The Redis Streams queue could not do what it was asked; nothing was retried."""


class QueueConfigError(QueueError, ValueError):
    """A refused setting or argument. Redis was not called."""


class QueuePayloadError(QueueConfigError, PayloadError):
    """A payload that breaks the JSON rule. Nothing was sent."""


class QueueConnectionError(QueueError):
    """The connection failed. Whether a command that was on its way took effect is unknown."""


class PartialEnqueueError(QueueError):
    """A bulk enqueue failed part of the way: `ids` are in the stream, `unknown` payloads after them may be."""

    def __init__(self, message: str, ids: list[str], unknown: int) -> None:
        super().__init__(message)
        self.ids = ids
        self.unknown = unknown


class GroupLostError(QueueError):
    """The consumer group (or its stream) does not exist any more. It is not created again by itself."""


class LeaseLostError(QueueError):
    """A fenced acknowledgement was refused: this consumer does not hold the entry any more."""


class DataLossError(QueueError):
    """Entries were trimmed or deleted before the Spark source could read them. Nothing can bring them back."""


class MalformedEntryError(QueueError):
    """Entries that are not one field `data` with a JSON object. They were delivered and stay pending.

    `entries` are the `MalformedEntry` objects, `messages` the good messages of the same call, also pending.
    """

    def __init__(self, message: str, entries: Sequence[Any], messages: Sequence[Any]) -> None:
        super().__init__(message)
        self.entries = entries
        self.messages = messages
