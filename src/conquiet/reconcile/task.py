"""Reconciliation as a Consumer Engine task: the same work on leased jobs, Redis Streams or in process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import (
    AttemptOrderError,
    DamagedRowError,
    PayloadError,
    ReconcileConfigError,
    ReportNotFoundError,
    ReportRefusedError,
)
from conquiet.reconcile.attempt import Fetcher, end_damaged, read_case, record_attempt
from conquiet.reconcile.carried_report import adopt_report, carries_report, refuse_another
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.platforms.fetcher import FetchOutcome
from conquiet.reconcile.platforms.postponement import delay_of, not_asked, postpone_attempt
from conquiet.reconcile.result import Case, ReconciliationResult, say
from conquiet.reconcile.rules import DEFAULT_RULES, Rules
from conquiet.task import ConsumerTask, ExceptionCategory, Transaction, TransactionException

__all__ = ["PlatformUnavailable", "ReconciliationTask"]

_HOPELESS = (
    PayloadError, ReportNotFoundError, ReportRefusedError, ReconcileConfigError, AttemptOrderError, DamagedRowError,
)  # fmt: skip


class PlatformUnavailable(TransactionException):
    """The platform did not answer, and asking again may help. The engine retries according to its policy."""

    def __init__(self, case: Case, outcome: FetchOutcome) -> None:
        super().__init__(
            f"report {case.report_id}: {case.platform} gave no answer ({outcome.error_code}): {outcome.detail}"
        )
        self.case = case
        self.outcome = outcome


class ReconciliationTask(ConsumerTask):
    """One transaction is one attempt: a `ReconciliationJob`, or its payload.

    A platform that does not answer is asked again within the attempt, by the retry policy of `process`. After the last
    retry the exception handler records the attempt as missing data. The transaction has then failed for the engine and
    may be delivered again; that delivery finds the attempt recorded and succeeds. Refused credentials and open breakers
    are recorded immediately, because asking again would not help. A platform that has asked for fewer calls is not asked
    before its time: until then it counts as not answering, or, with `postpone`, the attempt is put off and not used up.

    A job that carries its whole report, like those of the Spark pipeline, needs no report in the database: it is stored.

    A payload that is not a job, and a report that does not exist, are BUSINESS failures: a retry would not help.
    """

    span_payload_fields: Sequence[str] = ("affiliate_report_id", "attempt", "correlation_id")

    def __init__(
        self,
        fetcher: Fetcher,
        session_factory: Callable[[], Session],
        *,
        rules: Rules = DEFAULT_RULES,
        clock: Clock = SYSTEM_CLOCK,
        postpone: bool = False,
    ) -> None:
        """`postpone`: put off attempts at a platform that has asked for fewer calls. A `RetryScheduler` must be running."""
        self._postpone = postpone
        self._fetcher = fetcher
        self._session_factory = session_factory
        self._rules = rules
        self._clock = clock

    def process_transaction(self, transaction: Transaction) -> ReconciliationResult:
        try:
            job = _job(transaction)
            found = self._read(job, transaction.payload)
        except _HOPELESS as error:
            raise TransactionException(str(error), ExceptionCategory.BUSINESS, cause=error) from error
        if isinstance(found, ReconciliationResult):
            say(found, job.correlation_id)
            return found
        wait = delay_of(self._fetcher, found.platform)
        if wait and self._postpone:
            return self._put_off(found, wait, job)
        if wait:
            outcome = not_asked(found.platform, wait, utc(self._clock.time()))
        else:
            outcome = self._fetcher.fetch(found.platform, found.post_id)
        if outcome.may_be_retried:
            raise PlatformUnavailable(found, outcome)
        return self._record(found, outcome, job)

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        if isinstance(exception, PlatformUnavailable):
            self._record(exception.case, exception.outcome, _job(transaction))

    def _read(self, job: ReconciliationJob, payload: Any) -> Case | ReconciliationResult:
        is_whole = carries_report(payload)
        with self._session_factory() as session:
            try:
                found = read_case(session, job.affiliate_report_id, job.attempt)
            except DamagedRowError as error:
                now = utc(self._clock.time())
                end_damaged(session, job.affiliate_report_id, job.attempt, error, now)
                session.commit()
                raise
            except ReportNotFoundError:
                if not is_whole:
                    raise
                adopt_report(session, job, payload, utc(self._clock.time()), self._rules)
                found = read_case(session, job.affiliate_report_id, job.attempt)
            session.commit()
        if is_whole and isinstance(found, Case):
            refuse_another(found, payload)
        return found

    def _put_off(self, case: Case, wait: float, job: ReconciliationJob) -> ReconciliationResult:
        with self._session_factory() as session:
            result = postpone_attempt(session, case, utc(self._clock.time()) + timedelta(seconds=wait))
            session.commit()
        say(result, job.correlation_id or case.correlation_id)
        return result

    def _record(self, case: Case, outcome: FetchOutcome, job: ReconciliationJob) -> ReconciliationResult:
        with self._session_factory() as session:
            result = record_attempt(session, case, outcome, rules=self._rules, now=utc(self._clock.time()))
            session.commit()
        say(result, job.correlation_id or case.correlation_id)
        return result


def _job(transaction: Transaction) -> ReconciliationJob:
    payload = transaction.payload
    if isinstance(payload, ReconciliationJob):
        return payload
    if not isinstance(payload, dict):
        raise PayloadError(f"a reconciliation job was expected, not {type(payload).__name__}")
    return ReconciliationJob.from_payload(payload)
