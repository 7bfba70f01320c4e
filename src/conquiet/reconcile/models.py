"""The stored tables, the same on SQLite and PostgreSQL.

    affiliate_reports ─┬─ attempts            one row per (report, attempt); its inserter applies the effects
                       ├─ trust_ledger        at most one row per (report, attempt)
                       ├─ alerts              at most one row per (report, status)
                       └─ scheduled_attempts  attempts that are still to be made and are in no queue, or may be lost

The verdict of an attempt, its trust delta, its alert and the next attempt are written in one transaction. Scores are
sums over the ledger, never a stored total, so they cannot drift.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column

__all__ = [
    "AffiliateReport",
    "Alert",
    "Base",
    "ReportAttempt",
    "ScheduledAttempt",
    "TrustEntry",
    "UtcDateTime",
    "table_of",
]

MAX_NAME = 255


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes, to the microsecond. SQLite has no time zones and stores them as UTC without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored: use datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Base(DeclarativeBase):
    """The tables of reconciliation."""


def table_of(model: type[Base]) -> Table:
    """Return the table of a model. Statements of the hot path do not use the mapper."""
    table = model.__table__
    assert isinstance(table, Table)
    return table


_Key = BigInteger().with_variant(Integer, "sqlite")  # SQLite assigns ids only for exactly this type


def _of_report() -> MappedColumn[int]:
    return mapped_column(_Key, ForeignKey("affiliate_reports.id", ondelete="CASCADE"), primary_key=True)


class AffiliateReport(Base):
    """What an affiliate claims, and where its reconciliation stands. `status` is None before the first attempt."""

    __tablename__ = "affiliate_reports"

    id: Mapped[int] = mapped_column(_Key, primary_key=True, autoincrement=True)
    affiliate_id: Mapped[str] = mapped_column(String(MAX_NAME))
    platform: Mapped[str] = mapped_column(String(MAX_NAME))
    post_id: Mapped[str] = mapped_column(String(MAX_NAME))
    claimed_views: Mapped[int] = mapped_column(BigInteger)
    claimed_clicks: Mapped[int] = mapped_column(BigInteger)
    claimed_conversions: Mapped[int] = mapped_column(BigInteger)
    submitted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    received_at: Mapped[datetime] = mapped_column(UtcDateTime)
    priority: Mapped[str] = mapped_column(String(MAX_NAME), default="normal")
    correlation_id: Mapped[str | None] = mapped_column(String(MAX_NAME))
    idempotency_key: Mapped[str | None] = mapped_column(String(MAX_NAME))
    status: Mapped[str | None] = mapped_column(String(40))
    level: Mapped[str | None] = mapped_column(String(40))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    scheduled_retry_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        UniqueConstraint("affiliate_id", "idempotency_key"),
        {"sqlite_autoincrement": True},  # an id is never reused, even after a delete
    )


Index(
    "affiliate_reports_unfinished",
    AffiliateReport.id,
    postgresql_where=AffiliateReport.finished_at.is_(None),
    sqlite_where=AffiliateReport.finished_at.is_(None),
)


class ReportAttempt(Base):
    """One comparison of a report with its platform."""

    __tablename__ = "attempts"

    report_id: Mapped[int] = _of_report()
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    attempted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    observed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(String(40))
    level: Mapped[str | None] = mapped_column(String(40))
    observed_views: Mapped[int | None] = mapped_column(BigInteger)
    observed_clicks: Mapped[int | None] = mapped_column(BigInteger)
    observed_conversions: Mapped[int | None] = mapped_column(BigInteger)
    max_diff: Mapped[float | None] = mapped_column(Float(53))
    confidence: Mapped[float] = mapped_column(Float(53))
    missing_fields: Mapped[str] = mapped_column(String(MAX_NAME), default="")  # comma-separated names
    error_code: Mapped[str | None] = mapped_column(String(40))
    error_detail: Mapped[str | None] = mapped_column(Text)
    scheduled_retry_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class TrustEntry(Base):
    """One change of an affiliate's trust, in hundredths."""

    __tablename__ = "trust_ledger"

    report_id: Mapped[int] = _of_report()
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    affiliate_id: Mapped[str] = mapped_column(String(MAX_NAME), index=True)
    event: Mapped[str] = mapped_column(String(40))
    delta_hundredths: Mapped[int] = mapped_column(Integer)
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Alert(Base):
    """A finding that a person should look at."""

    __tablename__ = "alerts"

    report_id: Mapped[int] = _of_report()
    status: Mapped[str] = mapped_column(String(40), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(40))
    severity: Mapped[str] = mapped_column(String(40))
    raised_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class ScheduledAttempt(Base):
    """An attempt to be made at `due_at`. If `enqueued_at` is set, a queue has it, possibly in memory only."""

    __tablename__ = "scheduled_attempts"

    report_id: Mapped[int] = _of_report()
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    enqueued_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


Index(
    "scheduled_attempts_waiting",
    ScheduledAttempt.due_at,
    postgresql_where=ScheduledAttempt.enqueued_at.is_(None),
    sqlite_where=ScheduledAttempt.enqueued_at.is_(None),
)
