"""The connection that a handler gets: it takes the write lock at its first write, and only the worker commits it."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Self

from conquiet.flow import current_fence
from conquiet.jobs.backends.caller_connection import transaction_ended

__all__ = ["HandlerConnection", "HandlerCursor"]

_WORD = re.compile(r"\s*([a-zA-Z]+)")
# Everything else is taken for a write: WITH may begin one, and so may a comment. A transaction that the handler begins
# is its own choice of when to lock.
_NO_WRITES = frozenset(
    ["SELECT", "VALUES", "EXPLAIN", "PRAGMA", "ATTACH", "DETACH", "BEGIN", "ROLLBACK", "RELEASE"]
)
_COMMITS = frozenset(["COMMIT", "END"])


class HandlerConnection(sqlite3.Connection):
    """Begins its transaction with BEGIN IMMEDIATE before the first statement that may write.

    Not with BEGIN when it is opened: a transaction that has read cannot write any more once another one has committed.
    """

    closed = False
    _begun = False
    _ending = False

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or HandlerCursor)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self.cursor().execute(sql, *values)  # type: ignore[no-any-return]

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self.cursor().executemany(sql, *values)  # type: ignore[no-any-return]

    def executescript(self, script: str) -> sqlite3.Cursor:
        return self.cursor().executescript(script)  # type: ignore[no-any-return]

    def hold(self) -> None:
        """Begin the transaction, unless it has begun. Raise if it has ended: what follows would not be part of it."""
        if self.in_transaction:
            return
        if self._begun:  # the handler has ended it, or SQLite has: it rolls back when the disk is full
            raise transaction_ended()
        self.execute("BEGIN IMMEDIATE")
        current_fence().check()  # its time limit may have come while it waited for the lock; the worker rolls back

    def before(self, sql: str) -> None:
        """Called before each statement."""
        word = _WORD.match(sql)
        name = word[1].upper() if word else ""
        if name in _COMMITS:
            self._refuse_commit()
        elif name not in _NO_WRITES:
            self.hold()

    def after(self) -> None:
        """Called after each statement."""
        self._begun = self._begun or self.in_transaction

    def _refuse_commit(self) -> None:
        if self._begun and not self._ending:
            raise transaction_ended()

    def commit(self) -> None:
        self._refuse_commit()
        super().commit()

    def __exit__(self, *raised: Any) -> Any:
        if raised[0] is None:
            self._refuse_commit()
        return super().__exit__(*raised)

    def blobopen(self, *args: Any, readonly: bool = False, **options: Any) -> sqlite3.Blob:
        if not readonly:
            self.hold()
        return super().blobopen(*args, readonly=readonly, **options)

    def close(self) -> None:
        self.closed = True
        super().close()

    def end(self, how: str) -> None:
        """COMMIT or ROLLBACK, for the worker."""
        self._ending = True
        if self.in_transaction:
            self.execute(how)


class HandlerCursor(sqlite3.Cursor):
    connection: HandlerConnection

    def execute(self, sql: str, *values: Any) -> Self:
        self.connection.before(sql)
        super().execute(sql, *values)
        self.connection.after()
        return self

    def executemany(self, sql: str, *values: Any) -> Self:
        self.connection.before(sql)
        super().executemany(sql, *values)
        self.connection.after()
        return self

    def executescript(self, script: str) -> Self:
        """Run the statements one by one; the original commits first."""
        statement = ""
        for part in script.split(";")[:-1]:
            statement += f"{part};"
            if sqlite3.complete_statement(statement):  # the semicolon is not in a text or a trigger
                self.execute(statement)
                statement = ""
        if (rest := statement + script.rpartition(";")[2]).strip():
            self.execute(rest)
        return self
