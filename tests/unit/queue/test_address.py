"""A Redis URL means what it says, or is refused; and a refusal shows no part of a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.errors import AccessProblem
from conquiet.queue import QueueConfigError, connect, connect_async
from conquiet.queue.address import Address, AddressError

CONNECTS = pytest.mark.parametrize("connecting", [connect, connect_async], ids=["sync", "async"])


@CONNECTS
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://127.0.0.1:1/prod", "its database is not a number"),
        ("rediss://127.0.0.1:1/1/2", "its database is not a number"),
        ("redis://127.0.0.1:1/-1", "its database is not a number"),
        ("redis://127.0.0.1:1//1", "its database is not a number"),
        ("redis://127.0.0.1:1/0x1", "its database is not a number"),
        ("redis://127.0.0.1:1,127.0.0.2:1/0", "it has several hosts: for these write redis.sentinel://"),
        ("redis://127.0.0.1:1/0#1", "# has no meaning"),
        ("redis://127.0.0.1:1/0?socket_timeout", "each name=value"),
        ("redis://127.0.0.1:99999/0", "its port is not a number from 0 to 65535"),
        ("unix://host/run/redis.sock", "a Unix socket has no host"),
        ("redis+sentinel://127.0.0.1:1", "it names no service"),
        ("redis+sentinel://127.0.0.1:1/", "it names no service"),
        ("redis+sentinel://127.0.0.1:1/orders/prod", "its database is not a number"),
        ("redis+cluster://127.0.0.1:1/3", "a cluster has no database but 0"),
        ("redis+other://127.0.0.1:1", "no scheme that is known"),
        ("valkey://127.0.0.1:1", "no scheme that is known"),
    ],
)
def test_what_cannot_be_meant_is_refused(connecting: Callable[..., Any], url: str, reason: str) -> None:
    with pytest.raises(
        QueueConfigError, match=rf"is not a usable Redis URL \(.*{reason}.*expected redis://"
    ) as it:
        connecting(url)
    assert it.value.problem is AccessProblem.ADDRESS


@CONNECTS
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster", "unix"])
@pytest.mark.parametrize(
    "password",
    [
        "qzx@wvk/jyj",
        "qzx/wvk@jyj",
        "9191/wvk@jyj",
        "9191#wvk@jyj",
        "9191?wvk@jyj",
        "@jyj",
        "wvk:jyj@x",
        "qzx?wvk=jyj@x",
    ],
)
def test_a_password_that_is_not_escaped_is_not_shown_in_pieces(
    connecting: Callable[..., Any], scheme: str, password: str
) -> None:
    """Nor is a piece of it taken for a host: nothing is looked up."""
    with pytest.raises(QueueConfigError, match="is not a usable Redis URL") as caught:
        connecting(f"{scheme}://app:{password}@127.0.0.1:1/0")
    shown = f"{caught.value}{caught.value.__cause__}"
    for piece in ("qzx", "wvk", "jyj", "9191"):
        assert piece not in shown.partition("expected")[0]


def test_a_password_among_the_options_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QueueConfigError) as caught:
        connect("redis://127.0.0.1:1/prod?password=qzx@wvk")
    assert "wvk" not in str(caught.value).partition(" is not")[0]
    assert "qzx" not in str(caught.value)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=4))
def test_whatever_the_password_is_it_is_used_or_not_shown(password: str) -> None:
    url = f"redis://app:{password}@127.0.0.1:6379/0"
    try:
        address = Address.parse(url)
    except AddressError as error:
        said = str(error)
    else:
        said = ""
        assert address.hosts == (("127.0.0.1", 6379),)
        assert address.plain == url
    assert password not in said


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", Address("server", (("h", 6379),), "", "redis://h")),
        ("redis://h/", Address("server", (("h", 6379),), "", "redis://h")),
        ("redis://h:1/3?x=y", Address("server", (("h", 1),), "", "redis://h:1/3?x=y")),
        ("redis://[::1]:7/0", Address("server", (("::1", 7),), "", "redis://[::1]:7/0")),
        ("unix://:pw@/run/redis.sock?db=1", Address("server", (), "", "unix://:pw@/run/redis.sock?db=1")),
        (
            "redis+sentinel://u:pw@a,b:2/orders/4?x=y",
            Address("sentinel", (("a", 26379), ("b", 2)), "orders", "redis://u:pw@a/4?x=y"),
        ),
        ("rediss+sentinel://a/my%20db", Address("sentinel", (("a", 26379),), "my db", "rediss://a")),
        (
            "redis+cluster://a:1,b,[::1]:2/0",
            Address("cluster", (("a", 1), ("b", 6379), ("::1", 2)), "", "redis://a:1/0"),
        ),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    assert Address.parse(url) == expected
