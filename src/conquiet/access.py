"""Why a database gives no access, from its driver's error."""

from __future__ import annotations

import re
import sqlite3

from conquiet.errors import AccessProblem

__all__ = ["access_problem"]

_SQLITE = {
    sqlite3.SQLITE_NOTADB: AccessProblem.FOREIGN_FILE,
    sqlite3.SQLITE_READONLY: AccessProblem.FILE_ACCESS,
    sqlite3.SQLITE_CANTOPEN: AccessProblem.FILE_ACCESS,
    sqlite3.SQLITE_BUSY: AccessProblem.LOCKED,
    sqlite3.SQLITE_LOCKED: AccessProblem.LOCKED,
}
# libpq does not give the SQLSTATE of a refused connection: there is only the text.
_LIBPQ = (
    (re.compile(r'database ".*" does not exist'), AccessProblem.NO_DATABASE),
    (re.compile(r'password|role ".*"'), AccessProblem.CREDENTIALS),
)


def access_problem(error: BaseException | None) -> AccessProblem | None:
    """What to correct; None if that is unknown, or `error` is not about access."""
    if isinstance(error, sqlite3.Error):
        code: int = getattr(error, "sqlite_errorcode", 0)  # errors that Python itself raises have none
        return _SQLITE.get(code & 0xFF)  # the upper bits are details
    # Recognized by name: psycopg is optional. Errors of a statement have a SQLSTATE.
    if not type(error).__module__.startswith("psycopg") or getattr(error, "sqlstate", "") is not None:
        return None
    if type(error).__name__ == "ProgrammingError":  # libpq cannot read the DSN
        return AccessProblem.ADDRESS
    text = str(error)
    return next((problem for sign, problem in _LIBPQ if sign.search(text)), None)
