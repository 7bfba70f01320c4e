from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet import payload
from conquiet.errors import ConquietError, PayloadError
from conquiet.payload import PayloadLimits

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)
payloads = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=5)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"deep": value}


@given(payloads)
def test_what_goes_in_comes_out_with_the_same_types(value: dict[str, Any]) -> None:
    back = payload.decode(payload.encode(value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40, -(10**100)])
def test_large_integers_stay_integers(number: int) -> None:
    assert payload.decode(payload.encode({"n": number})) == {"n": number}
    assert type(payload.decode(b'{"n": %d}' % number)["n"]) is int


def test_an_escaped_nul_is_legal() -> None:
    assert payload.decode(payload.encode({"text": "a\0b"})) == {"text": "a\0b"}


def test_a_tuple_is_taken_as_the_list_it_comes_back_as() -> None:
    assert payload.decode(payload.encode({"pair": (1, (2, 3))})) == {"pair": [1, [2, 3]]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {"b": [1, math.nan]}}, r"nan at \$\.a\.b\[1\]"),
        ({"a": math.inf}, r"inf at \$\.a"),
        ({"a": b"bytes"}, r"bytes at \$\.a"),
        ({"a": {1, 2}}, r"set at \$\.a"),
        ({"a": uuid.UUID(int=7)}, r"uuid\.UUID at \$\.a"),
        ({"a": decimal.Decimal(1)}, r"decimal\.Decimal at \$\.a"),
        ({"a": datetime.datetime(2024, 1, 1)}, r"datetime\.datetime at \$\.a"),
        ({"a": Colour.RED}, r"Colour at \$\.a"),
        ({"a": Point(1)}, r"Point at \$\.a"),
        ({"a": 1j}, r"complex at \$\.a"),
        ({"a": {1: 2}}, r"key at \$\.a that is int"),
        ({None: 2}, r"key at \$ that is NoneType"),
        ({"a": "\ud800"}, r"lone surrogate in \$\.a"),
        ({"\udfff": 1}, r"lone surrogate in a key at \$"),
        (nested(101), "deeper than 100 levels"),
        (nested(100_000), "deeper than 100 levels"),
        ([1], "a payload is a dict with string keys, not list"),
        ("{}", "not str"),
        (None, "not NoneType"),
        ({"a": 10**5000}, "not JSON"),
    ],
)
def test_what_would_come_out_different_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said) as caught:
        payload.encode(value)
    assert isinstance(caught.value, ConquietError)
    assert isinstance(caught.value, ValueError)


def test_a_payload_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["me"] = value
    with pytest.raises(PayloadError, match="contains itself"):
        payload.encode(value)


def test_the_refusal_does_not_show_the_value() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(PayloadError) as caught:
        payload.encode({"key": Secret()})
    assert "hunter2" not in str(caught.value)


def test_limits() -> None:
    limits = PayloadLimits(max_bytes=20, max_depth=2)
    assert payload.encode({"a": "x" * 12}, limits) == b'{"a":"xxxxxxxxxxxx"}'
    with pytest.raises(PayloadError, match="21 bytes of JSON, over the limit of 20"):
        payload.encode({"a": "x" * 13}, limits)
    assert payload.encode(nested(2), limits)
    with pytest.raises(PayloadError, match="deeper than 2"):
        payload.encode(nested(3), limits)
    wide: dict[str, Any] = {"rows": [{} for _ in range(200)]}
    assert payload.decode(payload.encode(wide)) == wide


@pytest.mark.parametrize(("name", "value"), [("max_bytes", 0), ("max_bytes", True), ("max_depth", 501)])
def test_bad_limits_are_refused(name: str, value: Any) -> None:
    with pytest.raises(PayloadError, match=name):
        PayloadLimits(**{name: value})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[1]", "not an array"),
        (b"null", "not null"),
        (b'"x"', "not a string"),
        (b"7", "not a number"),
        (b"true", "not a boolean"),
        (b"", "not UTF-8 JSON"),
        (b"{", "not UTF-8 JSON"),
        (b'{"a": NaN}', "not UTF-8 JSON"),
        (b'{"a": 1e400}', "not UTF-8 JSON"),
        (b'{"a": "\xff"}', "not UTF-8 JSON"),
        (b'{"a": "\\ud800"}', "not UTF-8 JSON"),
        (b"\xef\xbb\xbf{}", "not UTF-8 JSON"),
        (b"[" * 100_000, "not UTF-8 JSON"),
    ],
)
def test_what_is_not_a_json_object_is_refused_when_read(data: bytes, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        payload.decode(data)
