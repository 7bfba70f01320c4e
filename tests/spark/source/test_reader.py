"""Ranges of a stream as rows: the fast and the careful parser give the same, and no odd entry is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from redis import Redis

from conquiet.errors import QueueConnectionError, QueueError
from conquiet.queue import connect
from conquiet.spark.source.options import SOURCE_SCHEMA
from conquiet.spark.source.reader import BlockReader, parse_range

USUAL = {"1-1": b'{"a":1}', "1-2": '{"é":"ü"}'.encode(), "5-0": b""}


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def reader(redis_url: str) -> Iterator[BlockReader]:
    with BlockReader(redis_url, "s", SOURCE_SCHEMA) as reader:
        yield reader


def test_rows_carry_id_data_and_the_time_in_the_id(redis: Redis, reader: BlockReader) -> None:
    for entry_id, data in USUAL.items():
        redis.xadd("s", {"data": data}, id=entry_id)
    rows = reader.read("-", "+").to_pylist()
    assert [row["id"] for row in rows] == list(USUAL)
    assert [row["data"] for row in rows] == [data.decode() for data in USUAL.values()]
    assert rows[2]["enqueued_at"] == datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"data": b'{\r\n "a": 1}'}, '{\r\n "a": 1}'),  # a line end as in the protocol
        ({"data": b"\r\n*2\r\n$4\r\ndata\r\n"}, "\r\n*2\r\n$4\r\ndata\r\n"),
        ({"data": b"\xff\xfe"}, None),  # not UTF-8
        ({"other": b"{}"}, None),
        ({"data": b"{}", "more": b"1"}, None),
        ({"a": b"1", "data": b"{}"}, None),
    ],
)
def test_odd_entries_cost_none_of_the_others(
    redis: Redis, reader: BlockReader, fields: dict[str, bytes], data: str | None
) -> None:
    redis.xadd("s", {"data": "before"}, id="1-1")
    redis.xadd("s", dict(fields), id="1-2")  # type: ignore[arg-type]
    redis.xadd("s", {"data": "after"}, id="1-3")
    rows = reader.read("1-1", "1-3").to_pylist()
    assert [(row["id"], row["data"]) for row in rows] == [("1-1", "before"), ("1-2", data), ("1-3", "after")]


def test_one_connection_serves_many_ranges_and_empty_ones(redis: Redis, reader: BlockReader) -> None:
    for number in range(1, 11):
        redis.xadd("s", {"data": "x" * number * 100_000}, id=f"1-{number}")
    assert reader.read("2", "3").num_rows == 0
    assert [len(text) for text in reader.read("1-9", "1-10").column(1).to_pylist()] == [900_000, 1_000_000]
    assert reader.read("(1-2", "+", 3).column(0).to_pylist() == ["1-3", "1-4", "1-5"]


def test_an_error_reply_is_a_queue_error(redis: Redis, reader: BlockReader) -> None:
    redis.set("s", "no stream")
    with pytest.raises(QueueError, match="XRANGE of stream 's': WRONGTYPE"):
        reader.read("-", "+")


def test_an_unreachable_server_is_told_without_its_password() -> None:
    with (
        BlockReader("redis://:hunter2@127.0.0.1:1/0", "s", SOURCE_SCHEMA) as reader,
        pytest.raises(QueueConnectionError) as raised,
    ):
        reader.read("-", "+")
    assert "hunter2" not in str(raised.value)


def test_a_field_of_another_name_is_not_taken_for_data_on_the_fast_way() -> None:
    entry = b"*2\r\n$3\r\n1-1\r\n*2\r\n$4\r\n%b\r\n$2\r\n{}"
    assert parse_range(b"*1\r\n" + entry % b"data") == ([b"1-1"], [b"{}"])
    assert parse_range(b"*1\r\n" + entry % b"atad") == ([b"1-1"], [None])
    assert parse_range(b"*0") == ([], [])


LATEST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def test_an_id_that_is_no_time_costs_nothing_but_the_time(redis: Redis, reader: BlockReader) -> None:
    """A producer may choose any id up to 2**64 - 1 milliseconds; the server then continues from there."""
    ids = ["1-1", f"{LATEST}-0", f"{LATEST + 1}-0", "9223372036854775-1", "9223372036854775807-1"]
    ids += ["18446744073709551610-1"]
    for entry_id in ids:
        redis.xadd("s", {"data": "{}"}, id=entry_id)
    ids.append(redis.xadd("s", {"data": "{}"}).decode())
    assert ids[-1] == "18446744073709551610-2"
    rows = reader.read("-", "+").to_pylist()
    assert [(row["id"], row["data"]) for row in rows] == [(entry_id, "{}") for entry_id in ids]
    first, last = (
        datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    )
    assert [row["enqueued_at"] for row in rows] == [first, last, None, None, None, None, None]
    assert reader.read(f"{LATEST}-0", f"{LATEST}-0").to_pylist()[0]["enqueued_at"] == last
    assert reader.read("18446744073709551610-2", "+").to_pylist()[0]["enqueued_at"] is None
