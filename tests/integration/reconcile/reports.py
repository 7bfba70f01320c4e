"""Reports to test with: stored directly, and read back with everything that belongs to them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.clock import utc
from conquiet.local import CircuitBreakerRegistry
from conquiet.reconcile import Metrics, PlatformFetcher, SimulatedAdapter
from conquiet.reconcile.models import AffiliateReport, Alert, ReportAttempt, ScheduledAttempt, TrustEntry
from conquiet.testing import ManualClock

NOTHING = Metrics(None, None, None)


def store(
    sessions: sessionmaker[Session],
    clock: ManualClock,
    claimed: tuple[int, int, int] = (1000, 30, 2),
    *,
    age_seconds: float = 0.0,
    **columns: Any,
) -> int:
    """A report on post `p1` of `instagram` by `ann`, received now."""
    now = utc(clock.time())
    values: dict[str, Any] = {
        "affiliate_id": "ann",
        "platform": "instagram",
        "post_id": "p1",
        "submitted_at": utc(clock.time() - age_seconds),
        "received_at": now,
        **dict(zip(("claimed_views", "claimed_clicks", "claimed_conversions"), claimed, strict=True)),
        **columns,
    }
    with sessions() as session:
        report = AffiliateReport(**values)
        session.add(report)
        session.commit()
        return report.id


def platform(
    posts: Mapping[str, Metrics], clock: ManualClock, **settings: Any
) -> tuple[PlatformFetcher, SimulatedAdapter]:
    """A fetcher whose one platform has these posts, and its adapter, which counts calls."""
    adapter = SimulatedAdapter(posts=posts, clock=clock, **settings)
    breakers = CircuitBreakerRegistry(clock=clock)
    return PlatformFetcher({"instagram": adapter}, breakers=breakers, clock=clock), adapter


def report(sessions: sessionmaker[Session], report_id: int) -> AffiliateReport:
    with sessions() as session:
        return session.get_one(AffiliateReport, report_id)


def rows(sessions: sessionmaker[Session], model: Any) -> list[Any]:
    with sessions() as session:
        return list(session.scalars(select(model).order_by(*model.__table__.primary_key.columns)))


def counts(sessions: sessionmaker[Session]) -> dict[str, int]:
    with sessions() as session:
        return {
            model.__tablename__: session.scalar(select(func.count()).select_from(model)) or 0
            for model in (ReportAttempt, TrustEntry, Alert, ScheduledAttempt)
        }


def moment(clock: ManualClock, seconds: float = 0.0) -> datetime:
    return utc(clock.time() + seconds)
