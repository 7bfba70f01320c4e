"""Inserts jobs from a query in one statement, for callers that have staged their rows in the same database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors as pg

from conquiet.jobs.backends.postgres.listener import channel_of
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
    """Add a Ready job for each row of `select`, wake the workers and return how many were added.

    `select` returns id, payload, priority, delay_seconds and correlation_id, already checked. `values` are its
    parameters. Rows whose ids are taken are left out. It runs in the transaction of `connection`.
    """
    statement = _INSERT.replace("{given_rows}", select)
    parameters = {**values, "queue": queue, "max_retries": max_retries, "channel": channel_of(queue)}
    # Taken ids are rare, and ON CONFLICT makes every row 50 % more expensive: it is used only after a conflict.
    try:
        with connection.transaction():
            return connection.execute(statement, parameters).rowcount
    except pg.UniqueViolation:
        return connection.execute(f"{statement} ON CONFLICT DO NOTHING", parameters).rowcount
