"""A program: for each named statement, a process reconciles a report and is killed right after that statement.

    python killed.py DSN report_id=statement …

A statement is named by the table it writes to; COMMIT is just before the commit that follows.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import event

from conquiet.reconcile import Metrics, PlatformFetcher, SimulatedAdapter, open_database, run_reconciliation
from conquiet.testing import ManualClock


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reconcile(dsn: str, report_id: int, statement: str) -> None:
    sessions = open_database(dsn)
    written: list[str] = []

    def after(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        written.append(sql)
        if sql.startswith((f"INSERT INTO {statement}", f"UPDATE {statement}")):
            die()

    def before_commit(_connection: Any) -> None:
        if statement == "COMMIT" and any(sql.startswith("INSERT INTO alerts") for sql in written):
            die()

    event.listen(sessions.kw["bind"], "after_cursor_execute", after)
    event.listen(sessions.kw["bind"], "commit", before_commit)
    fetcher = PlatformFetcher({"instagram": SimulatedAdapter(posts={"p1": Metrics(100, 30, 2)})})
    run_reconciliation(report_id, session_factory=sessions, fetcher=fetcher, clock=ManualClock())


def main(dsn: str, *cases: str) -> None:
    for case in cases:
        report_id, statement = case.split("=")
        child = os.fork()  # nothing is open yet: a child starts clean, without importing everything again
        if child == 0:
            reconcile(dsn, int(report_id), statement)
            os._exit(0)  # not killed: the test will notice
        _, status = os.waitpid(child, 0)
        print(statement, os.WTERMSIG(status) if os.WIFSIGNALED(status) else "lived")


if __name__ == "__main__":
    main(*sys.argv[1:])
