"""Inserts jobs from a query in one statement, for callers that have staged their rows in the same file."""

from __future__ import annotations

import sqlite3

from conquiet.clock import on_grid
from conquiet.jobs.backends.sql_files import load

__all__ = ["insert_selected"]

_INSERT = load("sqlite")["insert_selected"]


def insert_selected(
    connection: sqlite3.Connection, select: str, *, queue: str, max_retries: int, now: float
) -> int:
    """Add a Ready job for each row of `select` and return how many were added.

    `select` returns id, payload, priority, delay_seconds and correlation_id, already checked. Rows whose ids are taken
    are left out. It runs in the transaction of `connection`.
    """
    values = {"queue": queue, "max_retries": max_retries, "now": on_grid(now)}
    return connection.execute(_INSERT.replace("{given_rows}", select), values).rowcount
