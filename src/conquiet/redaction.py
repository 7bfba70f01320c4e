"""Removes secrets from text before it is put into a message, a log or a span, and checks DSNs before a driver sees them."""

from __future__ import annotations

import re
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

__all__ = [
    "impossible_host",
    "impossible_text",
    "misread_url",
    "printable",
    "redact",
    "redact_dsn",
    "without_password",
]

E = TypeVar("E", bound=BaseException)

# After these texts libpq quotes the name of an option, not a part of a password.
_NAMES_AN_OPTION = ("invalid URI query parameter:", "invalid connection option")
# Two steps, each linear in the length of the text: the text may be of any size and origin.
_UP_TO_LAST_AT = re.compile(r"(?<!\S)\S+@")
_URL_PASSWORD = re.compile(r"://(?P<user>[^\s/?#:@]*):\S*@")
_KEY_VALUE = re.compile(
    r"(?i)\b(?P<key>password|passwd|pwd|sslpassword|token|secret|api_?key)(?P<eq>\s*=\s*)"
    r"(?P<secret>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&;,'\"]+)"
)
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_SCHEME_AND_USER = re.compile(r"[a-z][a-z0-9+.]*://[^\s/?#:@]*")


def redact(text: str) -> str:
    """`text` without the passwords of any DSN in it, whether URL, query string or key=value form."""
    text = _UP_TO_LAST_AT.sub(lambda m: _URL_PASSWORD.sub(r"://\g<user>:***@", m[0]), text)
    return _KEY_VALUE.sub(lambda m: f"{m['key']}{m['eq']}***", text)


def redact_dsn(dsn: str) -> str:
    """A DSN as a message may show it: where it leads, on one line, without password and options.

    The DSN may be malformed. Its password may then be anything before the last @, spaces included; `redact` cannot find
    such a password, because it does not know where in a text the DSN begins.
    """
    before, at, place = dsn.rpartition("@")
    place = redact(place.partition("?")[0])
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
