"""Hosts and texts that no driver can encode are refused before a driver gets them."""

from __future__ import annotations

import socket

import pytest

from conquiet.redaction import impossible_host, impossible_text, misread_url, printable

IMPOSSIBLE = ["a..b", ".x", "x" * 64, "a." + "x" * 64, "é" * 60, "a\0b", "\ud800", "/a\0b"]
POSSIBLE = [
    "",
    "localhost",
    "a.b",
    "a.b.",
    "x" * 63,
    "é.example",
    "127.0.0.1",
    "::1",
    "fe80::1%eth0",
    "a b",
    "a_b",
]
POSSIBLE += ["/var/run/" + "x" * 100, "@abstract" + "x" * 100]


@pytest.mark.parametrize("host", IMPOSSIBLE, ids=ascii)
def test_impossible(host: str) -> None:
    assert impossible_host(host)
    assert misread_url(f"postgresql://app:secret@{host}:5432/jobs") or host.startswith("/")
    assert misread_url(f"postgresql://app:secret@{host}/jobs") or host.startswith("/")
    assert misread_url(f"postgresql://app@a.example:1,{host}:2/jobs") or host.startswith("/")
    assert misread_url(f"postgresql://app@/jobs?host={host}&x=1")


@pytest.mark.parametrize("host", POSSIBLE, ids=ascii)
def test_possible(host: str) -> None:
    assert not impossible_host(host)
    quoted = f"[{host}]" if ":" in host else host.replace("/", "%2F").replace("@", "%40")
    for url in (f"postgresql://app:secret@{quoted}:5432/jobs", f"postgresql://app@{quoted}/jobs?host=a.b"):
        assert misread_url(url) is None


@pytest.mark.parametrize("host", IMPOSSIBLE[:5], ids=ascii)
def test_python_itself_refuses_them(host: str) -> None:
    """This is why they are refused. If Python changes, the check can go."""
    with pytest.raises(UnicodeError):
        socket.getaddrinfo(host, 1)


def test_texts() -> None:
    for text in ("\0", "a\0", "\ud800", "a\udfff"):
        assert impossible_text(text)
    assert not impossible_text("\U0001f600 é\x01")
    for dsn in ("sqlite:///a%00b.db", "sqlite:///a\0b.db", "sqlite:///\udcff.db", "postgresql://u@h/x?a=%00"):
        assert (
            misread_url(dsn) == "it contains a NUL or a lone surrogate, which no name and no path can contain"
        )
    assert misread_url("sqlite:////var/lib/" + "x" * 100 + "..db") is None


def test_nothing_of_the_url_is_in_the_reason() -> None:
    for host in IMPOSSIBLE:
        reason = misread_url(f"postgresql://app:hunter2@{host}.hunter2/jobs")
        assert reason is None or "hunter2" not in reason


def test_what_is_printable_stays_and_the_rest_is_spelled_out() -> None:
    assert printable("é ok") == "é ok"
    assert printable("a\n\x1b[31m\0\ud800") == "a\\n\\x1b[31m\\x00\\ud800"
