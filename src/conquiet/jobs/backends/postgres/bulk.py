"""Jobs from the rows of a query, in one statement: for writers that have staged their rows in the same database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors as pg

from conquiet.jobs.backends.sql_files import load

__all__ = ["insert_selected"]

_INSERT = load("postgres")["insert_selected"]


def insert_selected(
    connection: psycopg.Connection[Any],
    select: str,
    values: Mapping[str, Any],
    *,
    queue: str,
    max_retries: int,
) -> int:
    """Add a Ready job for each row of `select` and wake the workers; how many were added.

    `select` gives id, payload, priority, delay_seconds and correlation_id, all checked, and takes `values`. A row whose
    id is taken is left out. It runs in the transaction of `connection`.
    """
    statement = _INSERT.replace("{select}", select)
    parameters = {**values, "queue": queue, "max_retries": max_retries}
    # Taken ids are rare, and ON CONFLICT makes every row half as expensive again: used only where one was found.
    try:
        with connection.transaction():
            return connection.execute(statement, parameters).rowcount
    except pg.UniqueViolation:
        return connection.execute(f"{statement} ON CONFLICT DO NOTHING", parameters).rowcount
