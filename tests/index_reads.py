"""What PostgreSQL has read of the table of jobs, by its own statistics."""

from __future__ import annotations

import psycopg


def reads(dsn: str) -> dict[str, int]:
    """How many rows have been read so far, by sequential scans and by each index."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        rows = admin.execute(
            "SELECT 'table', coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables"
            " WHERE relname = 'conquiet_jobs'"
            " UNION ALL SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'conquiet_jobs'"
        ).fetchall()
    return {name: int(number) for name, number in rows}


def wait_for_statistics(dsn: str, before: dict[str, int]) -> dict[str, int]:
    """Wait until the counts are visible: a connection reports them a moment after it ends."""
    while (after := reads(dsn))["conquiet_jobs_ready"] == before["conquiet_jobs_ready"]:
        pass
    return after
