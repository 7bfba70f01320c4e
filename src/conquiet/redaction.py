"""Removes secrets from text before it is put into a message, a log or a span, and checks DSNs before a driver sees them."""

from __future__ import annotations

import logging
import os
import re
import traceback
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

__all__ = [
    "annotate",
    "described",
    "end_of_text",
    "error_text",
    "first_line",
    "impossible_host",
    "impossible_text",
    "is_raised_by_user",
    "misread_url",
    "printable",
    "redact",
    "redact_dsn",
    "shown_lines",
    "traceback_text",
    "was_raised",
    "without_password",
]

E = TypeVar("E", bound=BaseException)

_log = logging.getLogger("conquiet")

# After these texts libpq quotes the name of an option, not a part of a password.
_NAMES_AN_OPTION = ("invalid URI query parameter:", "invalid connection option")
# Two steps, each linear in the length of the text: the text may be of any size and origin.
_UP_TO_LAST_AT = re.compile(r"(?<!\S)\S+@")
_URL_PASSWORD = re.compile(r"://(?P<user>[^\s/?#:@]*):\S*@")
_KEY_VALUE = re.compile(
    r"(?i)\b(?P<key>\w*(?:password|passwd|pwd|token|secret|api_?key))(?P<eq>\s*=\s*|['\"]\s*:\s*)"
    r"(?P<secret>'(?:[^'\\]|\\.)*(?:'|\\?\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|[^\s&;,'\"]+)"
)
_LONG_LINE = 2_048
_MARGIN = (
    512  # characters beyond a cut that are looked at, too: a password that it would split is still whole
)
# The rooms through which work reaches the user's code. Their frames say nothing about a failure of that code.
_MACHINERY = tuple(
    os.path.join(os.path.dirname(__file__), room, "") for room in ("app", "flow", "jobs", "queue", "task")
)
_TRACEBACK: Any = BaseException.__dict__["__traceback__"]  # a class may override it with anything
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_SCHEME_AND_USER = re.compile(r"[a-z][a-z0-9+.]*://[^\s/?#:@]*")


def redact(text: str) -> str:
    """`text` without the passwords of any DSN in it, whether URL, query string or key=value form, of a dict or of JSON."""
    if "@" in text and "://" in text:
        text = _UP_TO_LAST_AT.sub(lambda m: _URL_PASSWORD.sub(r"://\g<user>:***@", m[0]), text)
    if "=" in text or ":" in text:
        text = _KEY_VALUE.sub(lambda m: f"{m['key']}{m['eq']}***", text)
    return text


def error_text(error: object, limit: int) -> str:
    """The text of `error`, which may be anybody's exception: at most `limit` characters, without passwords.

    It is cut first and redacted then, because redacting takes much longer than writing: a text may be of any length.
    """
    try:
        text = str(error)
    except Exception as unshowable:  # noqa: BLE001 - __str__ is the user's code; the failure must still be reported
        text = f"(its text cannot be shown: {type(unshowable).__qualname__})"
    if len(text) <= limit + _MARGIN:
        return redact(text)[:limit]
    # With an @ at the cut, the beginning of a password that goes on for longer than the margin is found as well.
    return redact(f"{text[: limit + _MARGIN]}@").removesuffix("@")[:limit]


def described(error: BaseException) -> str:
    """The class and the text of `error`, for a note or a line in the log."""
    text = error_text(error, 1_024)
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def traceback_text(error: BaseException, limit: int, frames: int | None = None) -> str:
    """The end of the traceback of `error`, at most `limit` characters, without passwords.

    It begins at the first frame of the user's code, if there is one. It has no values of variables.
    """
    raised = _TRACEBACK.__get__(error)
    where = _below_machinery(raised) or raised
    try:
        text = "".join(traceback.TracebackException(type(error), error, where, limit=frames).format())
    except Exception as unshowable:  # noqa: BLE001 - its notes and attributes are the user's code
        return f"(the traceback of {described(error)} cannot be shown: {type(unshowable).__qualname__})\n"
    lines = [line if len(line) <= _LONG_LINE else error_text(line, _LONG_LINE) for line in text.split("\n")]
    return redact(end_of_text("\n".join(lines), limit))


def was_raised(error: BaseException) -> bool:
    """Whether a traceback of `error` would show where it comes from."""
    return _TRACEBACK.__get__(error) is not None


def is_raised_by_user(error: BaseException) -> bool:
    """Whether `error` has passed through code that is not ours."""
    return _below_machinery(_TRACEBACK.__get__(error)) is not None


def end_of_text(text: str, limit: int) -> str:
    """The last lines of `text` that have at most `limit` characters together: the first one could begin inside a password."""
    return text if len(text) <= limit else text[-limit:].partition("\n")[2]


def _below_machinery(where: TracebackType | None) -> TracebackType | None:
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        where = where.tb_next
    return where


def shown_lines(text: str) -> str:
    """`text` with control characters escaped, except line breaks and tabs: they could move the cursor of a terminal."""
    return text.translate(_CONTROLS)


def annotate(error: BaseException, note: str) -> None:
    """Add `note` to an exception that is raised to the caller. If its class refuses notes, log it instead."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - a frozen exception, or one with other notes: user code
        _log.warning("%s: %s", type(error).__qualname__, note)


def redact_dsn(dsn: str) -> str:
    """A DSN as a message may show it: where it leads, on one line, without password and options.

    The DSN may be malformed. Its password may then be anything before the last @, spaces included; `redact` cannot find
    such a password, because it does not know where in a text the DSN begins.
    """
    before, at, place = dsn.rpartition("@")
    place = redact(place.partition("?")[0])
    if "?" in before:  # of a password, or the beginning of options, and then what follows may be a password
        place = "…"
    if at:
        start = _SCHEME_AND_USER.match(before)
        shown = start[0] if start else ""
        place = f"{shown}{'' if shown == before else ':***'}@{place}"
    return printable(place)


def without_password(error: E) -> E:
    """`error`, or a replacement without the piece of the DSN that libpq quotes when it cannot read it.

    libpq's error is a psycopg.ProgrammingError without a SQLSTATE, recognized by name because psycopg is optional.
    """
    if type(error).__name__ != "ProgrammingError" or getattr(error, "sqlstate", "") is not None:
        return error
    text = str(error).strip()
    if not text.startswith(_NAMES_AN_OPTION):
        start, quote, _ = text.partition('"')
        text = start + ("(not shown: it may be a part of the password)" if quote else "")
    return type(error)(redact(text))


def printable(text: str) -> str:
    """`text` on one line, with control characters escaped: they could move a cursor or forge a log line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def first_line(text: str) -> str:
    """The beginning of `text` for a line of a log: its first line that is not empty, at most 300 characters."""
    line = text[:2_000].strip().partition("\n")[0]
    return printable(line if len(line) <= 300 else f"{line[:299]}…")


def misread_url(url: str) -> str | None:
    """Why `url` must not be given to a driver; None if it may be.

    In a URL, an unescaped / or @ of a password moves the rest of the password to where the host or port belongs. A driver
    would look it up in DNS and quote it in errors and logs. NUL and lone surrogates are refused differently by every
    driver, or cut the URL short.
    """
    if impossible_text(unquote(url)):
        return "it contains a NUL or a lone surrogate, which no name and no path can contain"
    hosts = url.partition("://")[2].partition("/")[0]
    before, _, hosts = hosts.rpartition("@")
    if "@" in before:
        return "in a password, @ is written %40"
    places = hosts.partition("?")[0].split(",")
    if not all(map(_HOST_AND_PORT.fullmatch, places)):
        return "its port is not a number; in a password, / is written %2F, : %3A and @ %40"
    names = [unquote(place.rpartition(":")[0] or place) for place in places]
    names += (value for name, value in parse_qsl(url.partition("?")[2]) if name == "host")
    if any(map(impossible_host, names)):
        return "no host can have that name: the parts between its dots have 1 to 63 characters each"
    return None


def impossible_host(host: str) -> bool:
    """Whether `host` cannot be looked up: Python then raises a UnicodeError, which no driver expects."""
    if host.startswith(("/", "@")):  # the path of a Unix socket
        return impossible_text(host)
    try:
        host.encode("idna")
    except UnicodeError:
        return True
    return "\0" in host


def impossible_text(text: str) -> bool:
    """Whether `text` has a NUL or a lone surrogate, which no server and no file system accepts."""
    return "\0" in text or any("\ud800" <= char <= "\udfff" for char in text)
