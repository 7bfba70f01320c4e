"""The errors of each room: below the room's root, and below the family that says what the caller can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


class PayloadError(ConfigError, ValueError):
    """A payload violates the JSON rule (`conquiet.payload`). Nothing was sent or stored."""


class MissingDependencyError(ConquietError, ImportError):
    """A required package or program is not installed, or not usable.

    `install` is the command that installs it, if there is one; `chosen` means that a setting names the unusable one.
    """

    def __init__(self, message: str, *, install: str = "", chosen: bool = False) -> None:
        super().__init__(message)
        self.install = install
        self.chosen = chosen


class ServerNotFoundError(MissingDependencyError):
    """No binary of a supported version was found for an embedded server."""


class SettingsError(ConfigError, ValueError):
    """A setting of the command line is missing or invalid. Nothing was done."""


class UnknownNameError(NotFoundError, LookupError):
    """There is no queue, stream or consumer group with that name, and the command does not create one."""


class ServerError(UnavailableError):
    """An embedded server did not become ready, or exited; the message ends with its log."""


class CallTimeoutError(OutcomeUnknownError, TimeoutError):
    """A call ran past its time limit. It may have taken effect; on a thread it may still run, see `flow.isolation`."""


class AbandonedCallError(LostError):
    """A call that was abandoned at its time limit tried to act for its caller again."""


class AbandonedThreadsError(RefusedError):
    """The allowed number of timed-out calls still hold their threads; no further timed call is started.

    Raised by the Consumer Engine it has a `report`, like every error that ends a consume loop.
    """

    report: Any = None


class IsolationError(ConquietError):
    """The root for calls in a child process."""


class IsolationConfigError(IsolationError, ConfigError, TypeError):
    """This function or these arguments cannot be sent to a child process. Nothing was run."""


class ProcessDiedError(IsolationError, OutcomeUnknownError):
    """The child process died before it answered."""


class ProcessCallsClosedError(IsolationError, RefusedError):
    """The `ProcessCalls` is closed. Nothing was run."""


class RemoteCallError(IsolationError):
    """The call raised inside its child process; `error_type` and `remote_traceback` show what and where."""

    def __init__(self, error_type: str, message: str, remote_traceback: str = "") -> None:
        super().__init__(f"{error_type}: {message}" if message else error_type)
        self.error_type = error_type
        self.error_message = message
        self.remote_traceback = remote_traceback


class PolicyError(ConfigError, ValueError):
    """A policy has an invalid value or an unknown key. Nothing was run."""


class TaskConfigError(ConfigError, TypeError):
    """A task or a connector lacks what the Consumer Engine needs, or has it in the wrong form. Nothing was run."""


class AsyncCallableError(ConfigError, TypeError):
    """A function returned work instead of doing it: a coroutine to a class that runs on threads, or a generator.

    What it was called for counts as not done. Use the asyncio variant of the class, or a function that does the work.
    """


class FlowError(ConquietError):
    """A flow broke the rules of the effect core: a bug in that flow."""


class ForeignError(ConquietError):
    """Code that the command runs (a handler, a Spark job) failed; its exception is the cause."""


class JobError(ConquietError):
    """An operation of the leased job store failed."""


class JobConfigError(JobError, ConfigError, ValueError):
    """A setting or an argument was refused. The store was not called."""


class TaskArgumentError(JobConfigError, TypeError):
    """The task's function does not accept these arguments. Nothing was queued."""


class JobRejectedError(JobError):
    """Raised by a handler if a retry cannot help: the job is Failed immediately, whatever retries it has left."""


class TaskMismatchError(JobRejectedError):
    """This program has no such task, or its function does not take the arguments: the job needs code of another version.

    A worker gives the job back until one with that code claims it, and fails it after `unknown_after`.
    """


class DuplicateJobError(JobError, RefusedError):
    """Jobs with these `ids` exist already. Nothing was enqueued."""

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class StaleLeaseError(JobError, LostError):
    """The token is not the job's current one, or its lease has expired. Nothing was changed."""


class IllegalTransitionError(JobError, RefusedError):
    """The state of the job does not allow this transition. Nothing was changed."""


class JobNotFoundError(JobError, NotFoundError, LookupError):
    """There is no job with that id."""


class StoreClosedError(JobError, RefusedError):
    """The store is closed, or was inherited by a fork in a state in which it cannot be used. Open a new one."""


class SchemaVersionError(JobError, RefusedError):
    """The database's schema is older or newer than this release of conquiet expects, or there is none.

    `found` describes it without advice, if `migrate` helps; `in_use` is set if workers may be using the old schema.
    """

    def __init__(self, message: str, *, found: str = "", in_use: bool = False) -> None:
        super().__init__(message)
        self.found = found
        self.in_use = in_use


class StoreUnavailableError(JobError, UnavailableError):
    """The store was not reached, or cannot work now (no connection, locked, full). Nothing was changed."""


class DamagedRowError(StoreUnavailableError):
    """A value that was not written by the store makes a statement fail. Nothing was changed."""


class StoreOutcomeUnknownError(StoreUnavailableError, OutcomeUnknownError):
    """The connection broke after a change was sent and before the answer came: it may have happened.

    After an enqueue, `ids` are the ids of the jobs: enqueueing them again with these ids and `on_duplicate="skip"` is
    safe.
    """

    ids: tuple[str, ...] = ()


class StagingLostError(LostError):
    """Rows that a Spark sink had staged for a batch are gone. They were not published."""


class ReconcileError(ConquietError):
    """An operation of the reconciliation failed."""


class ReconcileConfigError(ReconcileError, ConfigError, ValueError):
    """A rule, an adapter setting or an argument was refused. Nothing was fetched or stored."""


class ReportRefusedError(ReconcileError, ConfigError, ValueError):
    """A report violates the rules of the intake; `field` is the offending field, if it is one. Nothing was stored."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class KeyReusedError(ReportRefusedError):
    """An idempotency key was used again, with a different report."""


class IntakeBusyError(ReconcileError, UnavailableError):
    """The queue is full or shut down, or the affiliate sends too fast (`code`). Try again in `retry_after` seconds."""

    def __init__(self, code: str, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class ReportNotFoundError(ReconcileError, NotFoundError, LookupError):
    """There is no report with that id."""


class AttemptOrderError(ReconcileError, RefusedError):
    """The attempt before this one is not recorded. Nothing was changed."""


class PlatformError(ReconcileError):
    """A platform could not be queried, or its response is invalid."""


class PlatformRateLimitError(PlatformError):
    """The platform limits the rate of calls; `retry_after` is the wait that it asked for, in seconds, if any."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PlatformAuthError(PlatformError):
    """The platform refused our credentials. A retry with the same ones cannot help."""


class LocalQueueError(ConquietError):
    """An operation of the in-process queue failed. Nothing was enqueued."""


class LocalConfigError(LocalQueueError, ConfigError, ValueError):
    """A setting or an argument was refused."""


class UnknownPriorityError(LocalConfigError):
    """The queue's settings have no priority with that label."""


class QueueFullError(LocalQueueError, UnavailableError):
    """The queue holds `depth` items, its maximum. There is room again when its workers have taken some."""

    def __init__(self, message: str, depth: int) -> None:
        super().__init__(message)
        self.depth = depth


class QueueShutdownError(LocalQueueError, RefusedError):
    """The queue was shut down and accepts nothing more."""


class QueueError(ConquietError):
    """An operation of the Redis Streams queue failed; nothing was retried."""


class QueueConfigError(QueueError, ConfigError, ValueError):
    """A setting or an argument was refused. Redis was not called."""


class QueueAccessError(QueueConfigError):
    """Redis refused the user, the password (`problem` is CREDENTIALS), or the right to a command (PERMISSION).

    Nothing was done, and it fails again until the URL or the ACL is corrected. `code` is the first word of the refusal.
    """

    def __init__(self, message: str, code: str = "", problem: AccessProblem | None = None) -> None:
        super().__init__(message, problem=problem)
        self.code = code


class QueuePayloadError(QueueConfigError, PayloadError):
    """A payload violates the JSON rule. Nothing was sent."""


class QueueConnectionError(QueueError, UnavailableError):
    """Redis was not reached, or the connection failed."""


class QueueOutcomeUnknownError(QueueConnectionError, OutcomeUnknownError):
    """The connection failed after a command was sent and before its answer came: it may have taken effect.

    Look, or repeat it if that is safe: an acknowledgement always is, an enqueue only if consumers are idempotent.
    """


class QueueAnswerError(QueueError, OutcomeUnknownError):
    """The answer is not a valid Redis reply. Whether the command took effect is unknown."""


class QueueRefusedError(QueueError, RefusedError):
    """Redis refused the command, or this object must not be used here. `code` is the first word of Redis's refusal."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class PartialEnqueueError(QueueError, OutcomeUnknownError):
    """A bulk enqueue failed partway: `ids` are in the stream, the next `unknown` payloads may be, and the last
    `not_added` are certainly not (refused, or not sent)."""

    def __init__(self, message: str, ids: list[str], unknown: int, not_added: int = 0) -> None:
        super().__init__(message)
        self.ids = ids
        self.unknown = unknown
        self.not_added = not_added


class UnreplicatedEnqueueError(QueueOutcomeUnknownError):
    """Entries are on the master, and fewer replicas than asked for have them: a failover may lose them.

    `ids` are the entries; `replicas` is how many have them, None if that is not known.
    """

    def __init__(self, message: str, ids: Sequence[str], replicas: int | None) -> None:
        super().__init__(message)
        self.ids = tuple(ids)
        self.replicas = replicas


class GroupLostError(QueueError, LostError):
    """The consumer group (or its stream) no longer exists. It is not created again automatically."""


class LeaseLostError(QueueError, LostError):
    """A fenced acknowledgement was refused: this consumer no longer holds the entry."""


class ConsumerTakenError(QueueError, LostError):
    """Another Spark query runs under the name of this consumer or with this checkpoint; this query has ended."""


class DataLossError(QueueError, LostError):
    """Entries were trimmed or deleted before the Spark source could read them. They cannot be recovered."""


class MalformedEntryError(QueueError, RefusedError):
    """Entries do not have exactly one field `data` with a JSON object. They were delivered and stay pending.

    `entries` are the `MalformedEntry` objects, `messages` the valid messages of the same call, also pending.
    """

    def __init__(self, message: str, entries: Sequence[Any], messages: Sequence[Any]) -> None:
        super().__init__(message)
        self.entries = entries
        self.messages = messages
