"""Keys that belong to a stream are in its slot of a cluster, whatever the stream is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from conquiet.queue.wire import slot_of, tagged

NAMES = ["orders", "{a}", "{a}b", "b{a}", "a{}b", "{}", "}{", "a}b", "a{b", "{{a}}", "{a", "a}", "ü", "{}{a}"]


@pytest.mark.parametrize("stream", NAMES)
def test_odd_names(stream: str) -> None:
    check(stream)


@given(st.text("{}ab", min_size=1) | st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_any_name(stream: str) -> None:
    check(stream)


def check(stream: str) -> None:
    slot = key_slot(stream.encode())
    assert slot_of(stream) == slot
    for key in (f"{tagged(stream)}:ledger:group", f"conquiet:sink:{tagged(stream)}:journal:x{{y}}"):
        assert key_slot(key.encode()) == slot
        assert stream in key  # two streams never share keys


def test_the_names_of_streams_are_not_mixed_up() -> None:
    assert len({tagged(name) for name in NAMES}) == len(NAMES)
