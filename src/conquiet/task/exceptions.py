"""The exceptions that consumer tasks raise when a transaction fails, and those that end a consume loop.

ConquietError
├── TransactionException            one transaction failed; `category` is the kind of failure
├── RedactedError                   shown in place of an exception whose text held credentials
└── EngineError                     the loop ended; `report` accounts for everything that was fetched
    ├── FetchException              fetching from the connector failed; the cause has the reason
    │   ├── FetchTimeoutException   ... within the time limit of a fetch (an UnavailableError, a TimeoutError)
    │   └── ConnectorContractException  the connector broke its contract: correct it (a ConfigError)
    └── SettleException             the connector could not settle processed transactions (an OutcomeUnknownError)

`AbandonedThreadsError` (too many timed-out calls still hold their threads) also ends a loop. The others are in none of
the families of `conquiet.errors`: they carry the failure of a task or a connector, which decides what can be done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from conquiet.errors import (
    AbandonedThreadsError,
    ConfigError,
    ConquietError,
    OutcomeUnknownError,
    UnavailableError,
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
    """A transaction failed. Consumer tasks raise it with BUSINESS; anything else they raise is wrapped as SYSTEM.

    Handlers and outcomes get a copy of what a task raised, with the transaction's id; `cause` is the original exception
    that was wrapped.
    """

    # For subclasses that do not call this class's __init__.
    message: str = ""
    category: ExceptionCategory = ExceptionCategory.SYSTEM
    transaction_id: str | None = None

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
        """The exception that was wrapped, as it was raised; `__cause__` shows it without credentials."""
        shown = self.__cause__
        return shown.original if isinstance(shown, RedactedError) and shown.original is not None else shown


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
    """Shown in place of an exception whose text holds credentials; `error_type` names its class.

    `original` is the exception itself, which is not changed. It is not printed, and not pickled.
    """

    original: BaseException | None = None

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(f"{error_type}: {message}")
        self.error_type = error_type

    def __reduce__(self) -> tuple[Any, ...]:
        make, args, state = super().__reduce__()
        return make, args, {name: value for name, value in state.items() if name != "original"}
