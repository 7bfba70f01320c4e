"""Payloads: a payload comes out equal to what went in, or is refused before anything is stored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conquiet.errors import PayloadError
from conquiet.jobs import JobStore, NewJob, PayloadLimits
from conquiet.testing.store_suite.source import QUEUE, Fixtures, StoreSource, proves, unchanged

__all__ = ["Payloads"]

LIMIT = 8 * 1024 * 1024  # bytes of JSON, the default


def _nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels - 1):
        inner = {"in": inner}
    return inner


NOT_JSON: list[Any] = [
    {"x": math.nan},
    {"x": [math.inf]},
    {"x": {"y": -math.inf}},
    {"x": b"bytes"},
    {"x": {1, 2}},
    {"x": object()},
    {1: "x"},
    {"x": "\ud800"},
    {"\udfff": 1},
    _nested(101),
    ["not", "a", "dict"],
    "text",
    None,
]


class Payloads(Fixtures):
    @proves("J-03")
    @pytest.mark.parametrize(
        "payload",
        [
            {},
            {"": ""},
            {"nul": "a\0b", "control": "\x01\x1f\x7f", "line": "\r\n\u2028"},
            {"text": "ünï 日本語 🚀 \U0010ffff", "ключ": "'\"\\/%s{}$1?:x"},
            {"big": 2**64, "bigger": -(10**60), "edge": [2**63 - 1, 2**63, -(2**63), 2**53 + 1]},
            {"floats": [0.1, -0.0, 1e308, 5e-324, 1.0, 123456789.123456789]},
            {"kinds": [True, False, None, 1, "1", [], {}]},
            {"deep": _nested(90)},
            {"long": "x" * 100_000},
        ],
        ids=["empty", "blank", "controls", "unicode", "integers", "floats", "kinds", "deep", "long"],
    )
    def test_a_payload_survives(self, store: JobStore, payload: dict[str, Any]) -> None:
        given = store.enqueue(QUEUE, payload, id="a")
        store.enqueue_many(QUEUE, [payload])
        claimed = store.claim(QUEUE, 2)
        for job in (given, store.get("a"), *claimed):
            assert job is not None
            assert job.payload == payload
            assert repr(job.payload) == repr(payload)  # 1 is not 1.0 and not True

    @proves("J-03")
    def test_a_payload_that_is_not_json_is_refused(self, store: JobStore) -> None:
        with unchanged(store):
            for payload in NOT_JSON:
                with pytest.raises(PayloadError):
                    store.enqueue(QUEUE, payload)
                with pytest.raises(PayloadError):
                    store.enqueue_many(QUEUE, [{"good": 1}, NewJob(payload)])

    def test_the_limit_is_kept_to_the_byte(self, store: JobStore) -> None:
        overhead = len('{"x":""}')
        store.enqueue(QUEUE, {"x": "y" * (LIMIT - overhead)}, id="largest")
        (job,) = store.claim(QUEUE)
        assert len(job.payload["x"]) == LIMIT - overhead
        store.ack(job)
        with unchanged(store), pytest.raises(PayloadError, match=str(LIMIT)):
            store.enqueue(QUEUE, {"x": "y" * (LIMIT - overhead + 1)})

    def test_another_limit_can_be_set(self, stores: StoreSource) -> None:
        store = stores.open(limits=PayloadLimits(max_bytes=100, max_depth=2))
        store.enqueue(QUEUE, {"x": "y" * 92})
        for payload in ({"x": "y" * 93}, _nested(3)):
            with unchanged(store), pytest.raises(PayloadError):
                store.enqueue(QUEUE, payload)
