"""The job store that a verb works on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from conquiet.cli.output import session
from conquiet.cli.settings import DSN
from conquiet.errors import SchemaVersionError, SettingsError, UnknownNameError
from conquiet.jobs import JobStore, open_store

__all__ = ["check_queue", "opened_store", "store_dsn"]


@contextmanager
def opened_store(flag: str | None) -> Iterator[JobStore]:
    """The store, without creating tables: the DSN may be mistyped."""
    dsn = store_dsn(flag)
    path = sqlite_file(dsn)
    if path is not None and not os.path.exists(path):
        raise SchemaVersionError(
            f"there is no file {path}: correct {session.settings.used[DSN.key].origin}, or create it: conquiet migrate"
        )
    with open_store(dsn, migrate="never") as store:
        yield store


def store_dsn(flag: str | None) -> str:
    dsn = str(session.settings.need(DSN, flag))
    if dsn.startswith("memory://"):
        raise SettingsError(
            f"{session.settings.used[DSN.key].origin} is memory://, which exists only inside its process "
            f"and cannot be opened from here: give --dsn {DSN.example}"
        )
    return dsn


def sqlite_file(dsn: str) -> str | None:
    scheme, _, place = dsn.partition("://")
    if scheme.partition("+")[0] != "sqlite" or not place.startswith("/"):
        return None
    return unquote(place[1:].partition("?")[0])


def check_queue(store: JobStore, queue: str | None) -> None:
    """Refuse a queue without jobs: its name is probably mistyped."""
    if queue is not None and queue not in store.stats(queue):
        names = ", ".join(sorted(store.stats())) or "none"
        raise UnknownNameError(f"no job is or was in a queue {queue!r}; queues with jobs: {names}")
