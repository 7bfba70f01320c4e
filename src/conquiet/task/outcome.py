"""Outcomes: how each transaction ended, and the report that accounts for all of them."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from conquiet.task.exceptions import ExceptionCategory
from conquiet.task.transaction import Transaction

__all__ = ["ConsumeReport", "Outcome", "OutcomeStatus", "ReportWriter", "StopReason", "left_over"]

MOST_OUTCOMES = 1_000  # the maximum kept in a report


class OutcomeStatus(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNSETTLED = "unsettled"  # not begun, cut off, or the connector could not settle it


class StopReason(StrEnum):
    DRAINED = "drained"
    LIMIT = "limit"
    STOPPED = "stopped"
    LOOP_TIMEOUT = "loop timeout"
    ERROR = "error"


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """How one transaction ended. `attempts` counts the attempts to process it; 0 if it was not begun."""

    transaction_id: str
    status: OutcomeStatus
    result: Any = None
    exception: BaseException | None = None
    category: ExceptionCategory | None = None
    attempts: int = 0
    handled: bool = False  # its exception handler completed
    transaction: Transaction | None = None

    def __repr__(self) -> str:  # a result may hold secrets
        how = f", {self.category}" if self.category else ""
        return f"Outcome({self.transaction_id!r}, {self.status}{how}, attempts={self.attempts})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = ("transaction_id", "status", "category", "attempts")
        return [(name, getattr(self, name)) for name in names]


def left_over(transaction: Transaction, attempts: int = 0, error: BaseException | None = None) -> Outcome:
    """Return the outcome of a transaction that was not begun, or cut off."""
    # A connector may have given it something else as its id; such a batch is refused, and accounted for.
    given: object = transaction.id
    name = given if isinstance(given, str) else reprlib.repr(given)
    return Outcome(name, OutcomeStatus.UNSETTLED, exception=error, attempts=attempts, transaction=transaction)


class ConsumeReport(msgspec.Struct):
    """The account of one consume loop: `fetched == succeeded + failed + unsettled`."""

    fetched: int = 0
    processed: int = 0  # went through the whole lifecycle
    succeeded: int = 0
    failed: int = 0
    unsettled: int = 0
    by_category: dict[str, int] = {}
    stop_reason: StopReason = StopReason.DRAINED
    outcomes: list[Outcome] = []  # the first thousand that did not succeed
    abandoned_threads: int = 0  # timed out, and still running when the loop ended
    settle_unknown: list[
        str
    ] = []  # ids of those unsettled that the connector may have settled, the first thousand

    def __str__(self) -> str:
        unknown = f" ({len(self.settle_unknown)} of them perhaps settled)" if self.settle_unknown else ""
        return (
            f"{self.stop_reason}: {self.fetched} fetched, {self.succeeded} succeeded, {self.failed} failed, "
            f"{self.unsettled} unsettled{unknown}"
        )


class ReportWriter:
    """Writes the report of one loop. Thread-safe: runners on many threads add to it."""

    def __init__(self) -> None:
        self.report = ConsumeReport()
        self._lock = threading.Lock()

    def fetched(self, count: int) -> None:
        with self._lock:
            self.report.fetched += count

    def settle_unknown(self, outcomes: Iterable[Outcome]) -> None:
        """The settling of `outcomes` failed or was given up: it may have taken effect."""
        with self._lock:
            ids = self.report.settle_unknown
            ids += [outcome.transaction_id for outcome in outcomes][: MOST_OUTCOMES - len(ids)]

    def add(self, outcomes: Iterable[Outcome], *, processed: bool) -> None:
        """Count `outcomes`. `processed`: their lifecycles ran to the end, settled or not."""
        report = self.report
        with self._lock:
            for outcome in outcomes:
                report.processed += processed
                if outcome.status is OutcomeStatus.SUCCEEDED:
                    report.succeeded += 1
                    continue
                if outcome.status is OutcomeStatus.FAILED:
                    report.failed += 1
                    name = str(outcome.category)
                    report.by_category[name] = report.by_category.get(name, 0) + 1
                else:
                    report.unsettled += 1
                if len(report.outcomes) < MOST_OUTCOMES:
                    report.outcomes.append(outcome)
