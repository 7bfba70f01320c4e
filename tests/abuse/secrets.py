"""Canaries: a password and a value that must not be shown, and every place where they could be."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest

__all__ = ["PASSWORD", "VALUE", "broken_dsns", "logged", "shown", "unseen"]

PASSWORD = "hunter2"
VALUE = "4111-canary-1111"


def shown(error: BaseException) -> str:
    """Everything that a program could print of an error: its text, its repr, its traceback with causes and notes."""
    return "\n".join([str(error), repr(error), *traceback.format_exception(error)])


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Everything logged so far, with tracebacks and the extra fields of each record."""
    write = logging.Formatter().format
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    return "\n".join(f"{write(record)} {record.__dict__!r}" for record in records)


def unseen(secret: str, *places: object) -> None:
    for place in places:
        text = (
            place
            if isinstance(place, str)
            else shown(place)
            if isinstance(place, BaseException)
            else repr(place)
        )
        where = text.find(secret)
        assert where < 0, f"seen: …{text[max(0, where - 200) : where + 200]}…"


def broken_dsns(scheme: str, place: str, name: str) -> Iterator[str]:
    """DSNs with a password that is wrong, or not quoted as a URL requires, or in a URL that is broken elsewhere."""
    passwords = (
        "",
        "%zz",
        "/x",
        " x",
        "@x",
        "'x",
        '"x',
        "#x",
        "?x",
        ":x",
        "\nx",
        "\\x",
        "%",
        " and a few words more",
    )
    for ending in passwords:
        yield f"{scheme}://app:{PASSWORD}{ending}@{place}/{name}"
        yield f"{scheme}://app:x{ending}{PASSWORD}@{place}/{name}"
    yield f"{scheme}://:{PASSWORD}@{place}/{name}"
    for ending in ("", "%zz", "&nonsense=1", "%20x", "&connect_timeout=soon", "&socket_timeout=soon"):
        yield f"{scheme}://app@{place}/{name}?password={PASSWORD}{ending}"
    for broken in (f"{place}:port", f"{place}:99999999", "[::1", "nowhere.invalid", "127.0.0.1:1"):
        yield f"{scheme}://app:{PASSWORD}@{broken}/{name}"
    for impossible in ("a..b", ".x", "x" * 64, f"{'x' * 64}.example", "a%00b", "a\0b", "\ud800"):
        yield f"{scheme}://app:{PASSWORD}@{impossible}/{name}"
    yield f"{scheme}://app:{PASSWORD}\0@{place}/{name}"
    yield f"{scheme}://app:{PASSWORD}\ud800@{place}/{name}"
    for option in ("sslmode=nope", "nonsense=1", "sslrootcert=/nowhere", "passwrod=1"):
        yield f"{scheme}://app:{PASSWORD}@{place}/{name}?{option}"
    for start in (
        f"{scheme}:/",
        f"{scheme}//",
        "",
        f"x{scheme}://",
        f"{scheme}+driver://",
        f"{scheme.upper()}://",
    ):
        yield f"{start}app:{PASSWORD}@{place}/{name}"
    yield f"host=127.0.0.1 port=1 user=app password={PASSWORD} dbname={name}"
