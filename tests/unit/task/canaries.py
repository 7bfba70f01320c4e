"""Secrets to look for, and exceptions that hold them in every place where an exception can."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from conquiet.task.exceptions import ExceptionCategory, TransactionException

CANARY = "hunter2-canary"
DSNS = [
    f"redis://:{CANARY}@cache:6379/0",
    f"postgresql://ann:{CANARY}@db/jobs",
    f"host=db user=ann password={CANARY} dbname=jobs",
    f"postgresql://db/jobs?user=ann&password={CANARY}",
]
every_dsn = pytest.mark.parametrize("dsn", DSNS, ids=["redis", "url", "keywords", "query"])


class Unusual:
    """Exceptions whose text is not in `args`."""

    class Composed(Exception):
        def __init__(self, dsn: str) -> None:
            super().__init__()
            self.dsn = dsn

        def __str__(self) -> str:
            return f"cannot reach {self.dsn}"

    class Stubborn(Exception):
        def __init__(self, dsn: str) -> None:
            super().__init__()
            self._parts = [dsn]

        def __str__(self) -> str:
            return "".join(self._parts)

    class Refusal(TransactionException):
        def __init__(self, dsn: str) -> None:
            super().__init__("refused", ExceptionCategory.BUSINESS)
            self._parts = [dsn]

        def __str__(self) -> str:
            return "".join(self._parts)


def chained(dsn: str) -> Exception:
    """An exception with the secret three levels down, along a cause and a context."""
    try:
        try:
            try:
                raise ConnectionError(dsn)
            except ConnectionError as error:
                raise LookupError("no route") from error
        except LookupError:
            raise ValueError(f"while using {dsn}")  # noqa: B904 - the context is what this is about
    except ValueError as error:
        wrapped = RuntimeError("it did not work")
        wrapped.__cause__ = error
        return wrapped


def noted(dsn: str) -> Exception:
    error = ValueError("see the note")
    error.add_note(f"used {dsn}")
    return error


FAILURES: dict[str, Any] = {
    "text": lambda dsn: ValueError(f"cannot reach {dsn}"),
    "second argument": lambda dsn: ValueError("cannot reach", dsn),
    "chain": chained,
    "note": noted,
    "OSError": lambda dsn: OSError(111, f"cannot reach {dsn}", dsn),
    "ImportError": lambda dsn: ImportError(f"no driver for {dsn}", name="driver"),
    "SyntaxError": lambda dsn: SyntaxError("invalid", ("settings.py", 1, 1, f"DSN = '{dsn}'")),
    "KeyError": lambda dsn: KeyError(dsn),
    "timeout": lambda dsn: TimeoutError(f"cannot reach {dsn}"),
    "a dict": lambda dsn: ValueError({"dsn": dsn}),
    "bytes": lambda dsn: ValueError(dsn.encode()),
    "composed": Unusual.Composed,
    "stubborn": Unusual.Stubborn,
    "group": lambda dsn: ExceptionGroup(
        "several", [ValueError(dsn), ExceptionGroup("more", [OSError(1, dsn)])]
    ),
    "named group": lambda dsn: ExceptionGroup(f"all at {dsn}", [ValueError("x")]),
    "stubborn group": lambda dsn: ExceptionGroup("several", [Unusual.Stubborn(dsn)]),
    "business": lambda dsn: TransactionException(f"not at {dsn}", ExceptionCategory.BUSINESS),
    "business from": lambda dsn: TransactionException("no", ExceptionCategory.BUSINESS, cause=chained(dsn)),
    "stubborn business": Unusual.Refusal,
}
every_failure = pytest.mark.parametrize("kind", FAILURES)


def shown(error: BaseException | None) -> str:
    assert error is not None
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)
