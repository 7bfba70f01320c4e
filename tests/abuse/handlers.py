"""Handlers that a child process can import, and the worst error they raise: passwords all over its chain."""

from __future__ import annotations

from typing import Any

from tests.abuse.secrets import PASSWORD

__all__ = ["chained", "fail_in_a_chain"]

DSN = f"postgresql://app:{PASSWORD}@db/shop"


def chained(kind: type[Exception] = RuntimeError) -> Exception:
    """An error with the password in its text, its cause, its context, a note, and an exception group."""
    try:
        try:
            raise OSError(f"no route to {DSN}")
        except OSError:
            raise ValueError(f"password={PASSWORD}") from KeyError(DSN)
    except ValueError as first:
        try:
            raise kind(f"cannot connect to {DSN}") from ExceptionGroup(DSN, [first, LookupError(DSN)])
        except kind as error:
            error.add_note(f"tried {DSN} three times")
            return error


def fail_in_a_chain(job: Any) -> None:
    raise chained()
