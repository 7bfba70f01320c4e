"""Error texts in the form that jobs store."""

from __future__ import annotations

from typing import NamedTuple

from conquiet.errors import ConquietError, RemoteCallError
from conquiet.redaction import end_of_text, is_raised_by_user, traceback_text, was_raised
from conquiet.redaction import error_text as shown_text

__all__ = ["ErrorTexts", "error_text", "error_texts"]

MAX_ERROR = 8_192
MAX_TRACEBACK = 8_192  # bytes


class ErrorTexts(NamedTuple):
    """What a history has of an error."""

    text: str | None = None
    kind: str | None = None  # the name of its class, if it is an exception
    traceback: str | None = None  # if it was raised


def error_text(error: object) -> str:
    """Return the text of `error` in a form that every database accepts: no NUL, no lone surrogates, limited length.

    Passwords are removed.
    """
    return _storable(shown_text(error, MAX_ERROR))


def error_texts(error: BaseException | str | None) -> ErrorTexts:
    """Return what a history has of an error. One from a child process is shown as it was there."""
    if error is None:
        return ErrorTexts()
    if isinstance(error, RemoteCallError):
        where = end_of_text(error.remote_traceback, MAX_TRACEBACK)
        return ErrorTexts(error_text(error.error_message), error_text(error.error_type), _traceback(where))
    if not isinstance(error, BaseException):
        return ErrorTexts(error_text(error))
    where = "" if not was_raised(error) or _says_all(error) else traceback_text(error, MAX_TRACEBACK)
    return ErrorTexts(error_text(error), error_text(type(error).__qualname__), _traceback(where))


def _says_all(error: BaseException) -> bool:
    """Return whether `error` is ours, such as a time limit, and not raised by a handler: its frames would say nothing."""
    ours = isinstance(error, ConquietError) and not is_raised_by_user(error)
    return ours and error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)


def _traceback(text: str) -> str | None:
    written = _storable(text).encode()
    if len(written) > MAX_TRACEBACK:
        written = written[-MAX_TRACEBACK:].partition(b"\n")[2]
    return written.decode().rstrip("\n") or None


def _storable(text: str) -> str:
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
