"""Trust in affiliates: a ledger of whole hundredths, summed and clamped when it is read.

Clamping at every event would make the score depend on the order of events, which is not fixed between workers.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from conquiet.reconcile.database import insert_or_ignore
from conquiet.reconcile.models import TrustEntry, table_of
from conquiet.reconcile.rules import DEFAULT_RULES, Rules, TrustEvent

__all__ = ["record_trust", "trust_hundredths", "trust_score", "trust_scores"]

_LEDGER = table_of(TrustEntry)


def trust_score(session: Session, affiliate_id: str, rules: Rules = DEFAULT_RULES) -> float:
    """Return the score of an affiliate, from 0 to 1; 0.5 if it is unknown."""
    return trust_hundredths(session, affiliate_id, rules) / 100


def trust_hundredths(session: Session, affiliate_id: str, rules: Rules = DEFAULT_RULES) -> int:
    total = session.execute(
        select(func.sum(_LEDGER.c.delta_hundredths)).where(_LEDGER.c.affiliate_id == affiliate_id)
    ).scalar()
    return _clamped(int(total or 0), rules)


def trust_scores(session: Session, rules: Rules = DEFAULT_RULES) -> dict[str, float]:
    """Return the score of every affiliate that has an entry."""
    rows = session.execute(
        select(_LEDGER.c.affiliate_id, func.sum(_LEDGER.c.delta_hundredths)).group_by(_LEDGER.c.affiliate_id)
    )
    return {affiliate_id: _clamped(int(total), rules) / 100 for affiliate_id, total in rows}


def record_trust(
    connection: Connection,
    *,
    report_id: int,
    attempt: int,
    affiliate_id: str,
    event: TrustEvent,
    now: datetime,
    rules: Rules,
) -> int:
    """Record the event of an attempt once, and return its delta in hundredths."""
    delta = rules.trust.deltas[event]
    insert_or_ignore(
        connection,
        _LEDGER,
        {
            "report_id": report_id,
            "attempt": attempt,
            "affiliate_id": affiliate_id,
            "event": event.value,
            "delta_hundredths": delta,
            "recorded_at": now,
        },
    )
    return delta


def _clamped(total: int, rules: Rules) -> int:
    return max(rules.trust.lowest, min(rules.trust.highest, rules.trust.start + total))
