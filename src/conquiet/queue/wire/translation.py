"""Errors of redis-py and replies that are no answers, as errors of the queue."""

from __future__ import annotations

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.errors import (
    AccessProblem,
    GroupLostError,
    QueueAccessError,
    QueueAnswerError,
    QueueConnectionError,
    QueueError,
    QueueOutcomeUnknownError,
    QueueRefusedError,
    redact,
)
from conquiet.redaction import printable

__all__ = ["TRANSPORT_ERRORS", "is_doubtful", "refused_access", "translated"]

# The second is what Redis 7.0 says to a blocked read when the stream is deleted, renamed or replaced.
_GROUP_LOST = ("NOGROUP", "UNBLOCKED the stream key no longer exists")

# Errors that a reply in a wrong format causes in the client's parser and in the functions of `commands`.
_MISSHAPEN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
TRANSPORT_ERRORS = (RedisError, RedisClusterException, OSError, *_MISSHAPEN)
_NO_LOGIN = (AuthenticationError, AuthenticationWrongNumberOfArgsError)
# Answers of a server that did nothing and cannot now: it is loading, or its part of a cluster is away.
_NOT_NOW = (BusyLoadingError, ClusterDownError, TryAgainError)
# redis-py removes the code from the text of errors that have a class of their own.
_CODES = {
    ReadOnlyError: "READONLY",
    OutOfMemoryError: "OOM",
    MovedError: "MOVED",
    AskError: "ASK",
    ClusterCrossSlotError: "CROSSSLOT",
}


# A pool of the client that has no connection left says so in other words in every version.
_POOL_EMPTY = ("Too many connections", "No connection available.")


def is_doubtful(error: BaseException) -> bool:
    """Whether another server may be the master by now. The one that answered did nothing.

    A master that its replicas have left (`min-replicas-to-write`) may be one that is not told yet that it was replaced.
    """
    alone = isinstance(error, ResponseError) and str(error).startswith("NOREPLICAS")
    return alone or _is_demoted(error)


def _is_demoted(error: BaseException) -> bool:
    """Whether the server that answered is no master, or is not one any more; it did nothing."""
    if isinstance(error, RedisConnectionError):  # what connections of a Sentinel's client make of READONLY
        return isinstance(error.__context__, ReadOnlyError)
    # The text is said to a blocked read.
    return isinstance(error, ReadOnlyError) or (
        isinstance(error, ResponseError) and "instance state changed" in str(error)
    )


def refused_access(what: str, error: BaseException | None) -> QueueAccessError | None:
    """The error for a user, a password or a right that Redis refused, also if a cluster's client has wrapped it."""
    seen = error
    while seen is not None and not isinstance(seen, (*_NO_LOGIN, NoPermissionError)):
        seen = seen.__cause__
    if seen is None:
        return None
    what, reason = printable(what), printable(redact(str(seen))).rstrip(". ")
    if isinstance(seen, NoPermissionError):
        reason = reason if reason.startswith("NOPERM") else f"NOPERM {reason}"
        return QueueAccessError(
            f"{what}: {reason}. Nothing was done: the ACL of that user must allow it (docs/queue.md has a line that does)",
            "NOPERM",
            AccessProblem.PERMISSION,
        )
    # redis-py removes the code; without a password, Redis 7 answers the greeting with an advice about it.
    code = "NOAUTH" if reason.startswith(("Authentication required", "HELLO must")) else "WRONGPASS"
    reason = "Authentication required" if code == "NOAUTH" else reason
    return QueueAccessError(
        f"{what}: {code} {reason.removeprefix(code).lstrip()}. Nothing was done: correct the user and the password of the client",
        code,
        AccessProblem.CREDENTIALS,
    )


def translated(what: str, error: Exception, *, sent: bool = False, attempts: int = 1) -> QueueError:
    """Translate one of `TRANSPORT_ERRORS` into a QueueError; `sent` if the command may have reached Redis.

    `attempts` is how often the client tries to connect, by its own settings.
    """
    what, reason = printable(what), printable(redact(str(error))).rstrip(". ") or type(error).__name__
    if reason.startswith(_GROUP_LOST):
        return GroupLostError(
            f"{what}: the consumer group is gone ({reason}). It is not recreated automatically, because its "
            "pending entries are lost: find out what removed it, then make a new queue object"
        )
    if _is_demoted(error) and not isinstance(error, ReadOnlyError):
        return QueueConnectionError(
            f"{what}: the server is not the master any more ({reason}) and did nothing. Nothing was retried; "
            "the next call connects anew"
        )
    if (refused := refused_access(what, error)) is not None:
        return refused
    if not sent and (isinstance(error, MaxConnectionsError) or str(error) in _POOL_EMPTY):
        return QueueConnectionError(
            f"{what}: all connections of this client's own pool are in use, and nothing was sent; Redis itself may be well. "
            "Every thread or task that waits for Redis needs one: give the client a larger max_connections, or fewer callers"
        )
    # Redis answered and did nothing, or no command was sent because it is not known where to.
    if isinstance(error, (*_NOT_NOW, RedisClusterException)):
        return QueueConnectionError(f"{what}: {reason}. {_retried(attempts)}")
    # A host name or a password that cannot be encoded.
    unsendable = isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError)
    if unsendable or isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        if sent and not unsendable:
            return QueueOutcomeUnknownError(
                f"{what}: {reason}. The command was sent and no answer came: whether it was done is not known. Nothing was "
                "retried: look, or repeat it if that is safe (an enqueue only if consumers are idempotent)"
            )
        return QueueConnectionError(f"{what}: {reason}. {_retried(attempts)}")
    if not isinstance(error, ResponseError):  # of our parsers, or the client's own (InvalidResponse)
        return QueueAnswerError(
            f"{what}: the reply is not from Redis ({type(error).__name__}: {reason[:200]}). Whether the command was "
            "done is not known: find out what answers at that address"
        )
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    if code and not reason.startswith(code):
        reason = f"{code} {reason}"
    if reason.startswith(("MOVED ", "ASK ")):
        reason += ". This is a node of a cluster: connect with redis+cluster://"
    return QueueRefusedError(f"{what}: {reason}", code=reason.partition(" ")[0])


def _retried(attempts: int) -> str:
    if attempts == 1:
        return "Nothing was retried"
    times = f"up to {attempts} times" if attempts else "without end"
    return (
        f"The command was not sent; the client itself tries to connect {times} (its setting `retry`). "
        "conquiet.queue.connect(url) makes one that tries once"
    )
