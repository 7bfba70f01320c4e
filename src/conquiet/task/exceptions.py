"""What a task raises to say how a transaction failed, and what the engine ends with.

ConquietError
├── TransactionException            one transaction failed; `category` says how
├── AbandonedThreadsError           too many timed-out calls still hold their threads
└── EngineError                     the loop ended; `report` accounts for all that was fetched
    ├── FetchException              the connector could not be fetched from, or broke its contract
    │   └── FetchTimeoutException   ... within the time limit of a fetch (TimeoutError)
    └── SettleException             the connector could not settle what was processed
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from conquiet.errors import AbandonedThreadsError, ConquietError, redact

if TYPE_CHECKING:
    from conquiet.task.outcome import ConsumeReport

__all__ = [
    "AbandonedThreadsError",
    "EngineError",
    "ExceptionCategory",
    "FetchException",
    "FetchTimeoutException",
    "SettleException",
    "TransactionException",
]


class ExceptionCategory(StrEnum):
    """Whose fault it was, which decides whether it is tried again."""

    BUSINESS = "BUSINESS"  # the transaction's own: never retried
    SYSTEM = "SYSTEM"  # something around it: retried by policy
    TIMEOUT = "TIMEOUT"  # a limit was reached: retried by policy


class TransactionException(ConquietError):
    """A transaction failed. Tasks raise it with BUSINESS; whatever else they raise is wrapped as SYSTEM."""

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
    """The consume loop ended. `report` says what became of everything that had been fetched."""

    def __init__(self, message: str, report: ConsumeReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class FetchException(EngineError):
    """Fetching failed for good, or brought what no connector may return."""


class FetchTimeoutException(FetchException, TimeoutError):
    """Every attempt to fetch ran past its time limit, or the last one did."""


class SettleException(EngineError):
    """The connector failed to settle; the transactions in question are reported as unsettled."""


def without_secrets(error: BaseException) -> BaseException:
    """`error`, with the credentials of DSNs removed from its own text and from those it was raised from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        one.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in one.args)
        if isinstance(one, TransactionException):
            one.message = redact(one.message)
        if hasattr(one, "__notes__"):
            one.__notes__ = [redact(str(note)) for note in one.__notes__]
    return error


def text_of(error: BaseException) -> str:
    """What `error` says, without credentials and at most 1 KiB of it; its __str__ is the user's code and may fail."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - that must not keep the transaction from failing
        text = "(no readable text)"
    return redact(text[:16_384])[:1_024]
