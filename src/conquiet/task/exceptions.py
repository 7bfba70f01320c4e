"""The exceptions that consumer tasks raise when a transaction fails, and those that end a consume loop.

ConquietError
├── TransactionException            one transaction failed; `category` is the kind of failure
├── RedactedError                   replaces an exception whose text held credentials that could not be removed
└── EngineError                     the loop ended; `report` accounts for everything that was fetched
    ├── FetchException              fetching from the connector failed; the cause has the reason
    │   ├── FetchTimeoutException   ... within the time limit of a fetch (an UnavailableError, a TimeoutError)
    │   └── ConnectorContractException  the connector broke its contract: correct it (a ConfigError)
    └── SettleException             the connector could not settle processed transactions (an OutcomeUnknownError)

`AbandonedThreadsError` (too many timed-out calls still hold their threads) also ends a loop. The others are in none of
the families of `conquiet.errors`: they carry the failure of a task or a connector, which decides what can be done.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from conquiet.errors import (
    AbandonedThreadsError,
    ConfigError,
    ConquietError,
    OutcomeUnknownError,
    UnavailableError,
    redact,
)

if TYPE_CHECKING:
    from conquiet.task.outcome import ConsumeReport

__all__ = [
    "AbandonedThreadsError",
    "ConnectorContractException",
    "EngineError",
    "ExceptionCategory",
    "FetchException",
    "FetchTimeoutException",
    "RedactedError",
    "SettleException",
    "TransactionException",
]


class ExceptionCategory(StrEnum):
    """The kind of a failure, which decides whether the step is attempted again."""

    BUSINESS = "BUSINESS"  # the transaction itself is wrong: never retried
    SYSTEM = "SYSTEM"  # something around it failed: retried by policy
    TIMEOUT = "TIMEOUT"  # a limit was reached: retried by policy


class TransactionException(ConquietError):
    """A transaction failed. Consumer tasks raise it with BUSINESS; anything else they raise is wrapped as SYSTEM."""

    def __init__(
        self,
        message: str,
        category: ExceptionCategory = ExceptionCategory.SYSTEM,
        transaction_id: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.category = ExceptionCategory(category)
        self.transaction_id = transaction_id
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        return self.__cause__


class EngineError(ConquietError):
    """The consume loop ended. `report` accounts for everything that was fetched."""

    def __init__(self, message: str, report: ConsumeReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class FetchException(EngineError):
    """Fetching failed, including all retries."""


class FetchTimeoutException(FetchException, UnavailableError, TimeoutError):
    """Every attempt to fetch ran past its time limit, or the last one did."""


class ConnectorContractException(FetchException, ConfigError):
    """The connector broke its contract. The message says how: correct the connector.

    No transaction of that batch was processed; they are reported as unsettled. The batch is not fetched again.
    """


class SettleException(EngineError, OutcomeUnknownError):
    """The connector failed to settle; the transactions concerned are reported as unsettled."""


class RedactedError(ConquietError):
    """Replaces an exception whose text held credentials and could not be changed; `error_type` names its class."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(f"{error_type}: {message}")
        self.error_type = error_type


def without_secrets(error: BaseException) -> BaseException:
    """Return `error` without the credentials of DSNs, in its own text and in those of its causes.

    The exception is changed in place. If that is impossible (its text is computed, or read-only), another exception
    replaces it.
    """
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += (one.__cause__, one.__context__)
            if isinstance(one, BaseExceptionGroup):
                waiting += one.exceptions
    # In reverse: the members of a group are cleaned before the group.
    clean = {key: _cleaned(one) for key, one in reversed(found.items())}
    for one in clean.values():
        _link(one, clean)
    return clean[id(error)]


def text_of(error: BaseException) -> str:
    """Return the text of `error` without credentials, at most 1 KiB. Its __str__ is user code and may fail."""
    return cut(redact(_text(error)))


def type_name(error: BaseException) -> str:
    """Return the class name of `error` as OpenTelemetry expects it: with its module, unless it is built in."""
    if isinstance(error, RedactedError):
        return error.error_type
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cut(text: str) -> str:
    """Return at most 1 KiB of `text`, encodable as UTF-8."""
    return text[:1_024].encode("utf-8", "replace")[:1_024].decode("utf-8", "ignore")


def guarded(redactor: Callable[[str], str]) -> Callable[[str], str]:
    """Wrap the user's `redactor`: if it fails, the text is withheld."""

    def redacted(text: str) -> str:
        try:
            clean: object = redactor(text)
            return clean if isinstance(clean, str) else f"(withheld: redact() gave {type(clean).__name__})"
        except Exception as error:  # noqa: BLE001 - user code; the failure must still be reported
            return f"(withheld: redact() raised {type(error).__name__})"

    return redacted


def _text(error: BaseException, write: Callable[[BaseException], str] = str) -> str:
    try:
        return write(error)
    except Exception:  # noqa: BLE001 - user code; the failure must still be reported
        return "(no readable text)"


_TEXTS = (
    "message",
    "strerror",
    "filename",
    "filename2",
    "msg",
    "text",
    "reason",
)  # where common exceptions keep their texts


def _cleaned(one: BaseException) -> BaseException:
    args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in one.args)
    if args != one.args:
        one.args = args
    if notes := getattr(one, "__notes__", None):
        one.__notes__ = [redact(str(note)) for note in notes]
    _clean_texts(one, _TEXTS)
    if _shows_secrets(one):
        _clean_texts(one, tuple(getattr(one, "__dict__", ())))
    return _stand_in(one) if _shows_secrets(one) else one


def _clean_texts(one: BaseException, names: tuple[str, ...]) -> None:
    for name in names:
        try:
            value = getattr(one, name, None)
            if isinstance(value, str) and (clean := redact(value)) != value:
                setattr(one, name, clean)
        except Exception:  # noqa: BLE001, S112 - a property in user code; the exception is replaced if its text still shows secrets
            continue


def _shows_secrets(one: BaseException) -> bool:
    if isinstance(one, BaseExceptionGroup) and any(map(_shows_secrets, one.exceptions)):
        return True
    texts = (_text(one), _text(one, repr))
    return any(redact(text) != text for text in texts)


def _stand_in(one: BaseException) -> BaseException:
    text = redact(_text(one))
    stand_in: BaseException
    if isinstance(one, TransactionException):
        stand_in = TransactionException(text, one.category, one.transaction_id)
    else:
        stand_in = RedactedError(type_name(one), text)
    stand_in.__cause__, stand_in.__context__ = one.__cause__, one.__context__
    stand_in.__suppress_context__ = one.__suppress_context__
    for note in getattr(one, "__notes__", ()):
        stand_in.add_note(note)
    if isinstance(one, BaseExceptionGroup):
        for member in one.exceptions:
            stand_in.add_note(f"{type(member).__qualname__}: {redact(_text(member))}")
    return stand_in.with_traceback(one.__traceback__)


def _link(one: BaseException, clean: dict[int, BaseException]) -> None:
    """Replace the cause and context of `one` by their clean versions."""
    cause, context, suppressed = one.__cause__, one.__context__, one.__suppress_context__
    if cause is not None and (clean_cause := clean.get(id(cause), cause)) is not cause:
        one.__cause__ = clean_cause
    if context is not None and (clean_context := clean.get(id(context), context)) is not context:
        one.__context__ = clean_context
    one.__suppress_context__ = suppressed
