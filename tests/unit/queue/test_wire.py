"""Packing commands and parsing replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer

from conquiet.queue.wire.commands import as_mapping, pack, parse_entries, stream_entries

VALUES = st.one_of(st.binary(max_size=50), st.text(max_size=50), st.integers())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_a_packed_command_is_what_the_client_would_send(parts: list[Any]) -> None:
    def encode(value: Any) -> bytes:
        return value if isinstance(value, bytes) else str(value).encode()

    # The client splits a command name at a space: ours never have one.
    theirs = b"".join(PythonRespSerializer(10_000, encode).pack("NAME", *parts))
    assert pack("NAME", *parts) == theirs


@pytest.mark.parametrize(
    ("reply", "entries"),
    [
        (None, ()),
        ([], ()),
        ({}, ()),
        ([[b"orders", [[b"1-1", [b"data", b"{}"]]]]], [[b"1-1", [b"data", b"{}"]]]),
        ({b"orders": [[b"1-1", [b"data", b"{}"]]]}, [[b"1-1", [b"data", b"{}"]]]),
    ],
)
def test_the_entries_of_a_read_in_both_protocols(reply: Any, entries: Any) -> None:
    assert stream_entries(reply) == entries


def test_names_and_values_in_both_protocols() -> None:
    assert as_mapping([b"lag", 1, b"name", b"g"]) == as_mapping({b"lag": 1, b"name": b"g"})


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5))
def test_what_is_json_comes_back_equal(payloads: list[dict[str, Any]]) -> None:
    entries = [[f"{n}-0".encode(), [b"data", json.dumps(p).encode()]] for n, p in enumerate(payloads)]
    messages, malformed = parse_entries(entries, "orders", "billing")
    assert [message.payload for message in messages] == payloads
    assert [message.id for message in messages] == [f"{n}-0" for n in range(len(payloads))]
    assert malformed == []


@given(st.lists(st.lists(st.binary(max_size=30), max_size=6), max_size=6))
def test_any_fields_at_all_are_a_message_or_a_reason(rows: list[list[bytes]]) -> None:
    """Whatever other programs write: nothing raises, nothing is lost, and reasons are short and printable."""
    rows = [row[: len(row) // 2 * 2] for row in rows]
    entries = [[f"{n}-0".encode(), row] for n, row in enumerate(rows)]
    messages, malformed = parse_entries(entries, "orders", "billing")
    ids = [one.id for one in messages] + [one.id for one in malformed]
    found = [int(one.partition("-")[0]) for one in ids]
    assert sorted(found) == list(range(len(rows)))
    for entry in malformed:
        assert entry.size == sum(map(len, rows[int(entry.id.partition("-")[0])]))
        assert entry.reason.isprintable()
        assert len(entry.reason) < 600


def test_many_long_field_names_are_told_in_short() -> None:
    fields = [part for n in range(1000) for part in (f"{n}-".encode() + b"x" * 1000, b"secret value")]
    _, (entry,) = parse_entries([[b"1-1", fields]], "orders", "billing")
    assert entry.reason.endswith("…, not exactly one field 'data'")
    assert "secret" not in entry.reason
    assert len(entry.reason) < 600
