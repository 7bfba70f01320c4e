"""The handler for workers, with everything that an attempt needs besides its job."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.reconcile.attempt import Fetcher, run_reconciliation
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.result import ReconciliationResult
from conquiet.reconcile.rules import DEFAULT_RULES, Rules

__all__ = ["Reconciler"]


class Reconciler:
    """Call it with a job and, if there is one, the worker's session; otherwise it creates a session.

    An attempt at a platform that has asked for fewer calls is scheduled for later: a `RetryScheduler` must be running.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        session_factory: Callable[[], Session],
        *,
        rules: Rules = DEFAULT_RULES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._fetcher = fetcher
        self._session_factory = session_factory
        self._rules = rules
        self._clock = clock

    def __call__(self, job: ReconciliationJob, session: Session | None = None) -> ReconciliationResult:
        try:
            return self._reconcile(job, session)
        except StoreOutcomeUnknownError as error:  # an attempt that was recorded is not recorded twice
            raise StoreUnavailableError(
                f"report {job.affiliate_report_id}, attempt {job.attempt} may have been recorded; it can be made again: {error}"
            ) from error

    def _reconcile(self, job: ReconciliationJob, session: Session | None) -> ReconciliationResult:
        return run_reconciliation(
            job.affiliate_report_id,
            fetcher=self._fetcher,
            session_factory=self._session_factory if session is None else None,
            session=session,
            rules=self._rules,
            clock=self._clock,
            attempt=job.attempt,
            correlation_id=job.correlation_id,
            commit=session is not None,
            postpone=True,
        )
