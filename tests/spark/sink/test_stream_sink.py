"""The Redis sink by itself: staged, and published exactly once, from any point of interruption."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

from conquiet.errors import QueueConnectionError, QueueError, QueuePayloadError, StagingLostError
from conquiet.spark.sink.journal import Journal
from conquiet.spark.sink.streams import StreamSink
from conquiet.spark.sink.writers import Staged
from tests.spark.sink.sinking import DATA, STREAM, arrow, batch, entries, stream_options, stream_sink, texts

pytestmark = pytest.mark.clause("P-05")

JOURNAL = f"conquiet:sink:{{{STREAM}}}:journal:query".encode()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


class Cut(Exception):
    """The driver died."""


class CutSink(StreamSink):
    """Dies after this many steps of publishing: with 0, right after the journal was begun."""

    def __init__(self, url: str, steps: int) -> None:
        super().__init__(stream_options(url), DATA)
        self._steps_left = steps

    def _journal(self, exchange: object, batch: object) -> Journal:
        journal = super()._journal(exchange, batch)  # type: ignore[arg-type]
        step = journal.step

        def counted(batch: bytes, at: bytes, staging: bytes) -> bool:
            if self._steps_left == 0:
                raise Cut
            self._steps_left -= 1
            return step(batch, at, staging)

        journal.step = counted  # type: ignore[method-assign]
        return journal


def stage(sink: StreamSink, number: int, *partitions: list[str]) -> list[Staged]:
    """Each partition in Arrow batches of 1,000 rows, one chunk each."""
    return [
        sink.stage(
            (arrow(rows[begin : begin + 1_000]) for begin in range(0, len(rows), 1_000)),
            batch(number),
            secrets.token_hex(8),
        )
        for rows in partitions
    ]


def test_rows_become_entries_in_order(redis_url: str, client: redis.Redis) -> None:
    sink, rows = stream_sink(redis_url), texts(5_000)
    staged = stage(sink, 0, rows[:2_300], rows[2_300:], [])
    assert client.xlen(STREAM) == 0  # not before the commit
    sink.publish(staged, batch(0))
    assert entries(client) == rows
    assert set(client.keys("*")) == {JOURNAL, STREAM.encode()}


@pytest.mark.parametrize("replayed_as", ["one partition", "three partitions"])
@pytest.mark.parametrize("steps", range(6))
def test_a_batch_that_was_cut_off_is_finished_by_its_replay(
    redis_url: str, client: redis.Redis, steps: int, replayed_as: str
) -> None:
    """Interrupted at any step, and however the replay partitions its rows."""
    rows = texts(5_500)
    cut = CutSink(redis_url, steps)
    with pytest.raises(Cut):
        cut.publish(stage(cut, 3, rows[:3_000], rows[3_000:]), batch(3))
    assert len(entries(client)) < len(rows)
    sink = stream_sink(redis_url)
    parts = [rows] if replayed_as == "one partition" else [rows[4_000:], rows[:10], rows[10:4_000]]
    sink.publish(stage(sink, 3, *parts), batch(3))
    assert entries(client) == rows  # the first staging's order: the second was not needed
    assert set(client.keys("*")) == {JOURNAL, STREAM.encode()}


def test_a_published_batch_adds_nothing_when_it_comes_again(redis_url: str, client: redis.Redis) -> None:
    sink, rows = stream_sink(redis_url), texts(2_000)
    sink.publish(stage(sink, 0, rows[:1_000]), batch(0))
    sink.publish(stage(sink, 1, rows[1_000:]), batch(1))
    for number in (1, 0):  # also an earlier one
        sink.publish(stage(sink, number, rows), batch(number))
    assert entries(client) == rows
    assert set(client.keys("*")) == {JOURNAL, STREAM.encode()}


def test_other_queries_have_journals_of_their_own(redis_url: str, client: redis.Redis) -> None:
    sink = stream_sink(redis_url)
    for query in ("a", "b"):
        staged = [sink.stage(iter([arrow(texts(3))]), batch(0, query), "1")]
        sink.publish(staged, batch(0, query))
    assert entries(client) == texts(3) * 2


def test_a_batch_that_was_begun_is_finished_before_the_next(redis_url: str, client: redis.Redis) -> None:
    rows = texts(4_000)
    cut = CutSink(redis_url, 1)
    with pytest.raises(Cut):
        cut.publish(stage(cut, 5, rows[:3_000]), batch(5))
    sink = stream_sink(redis_url)
    sink.publish(stage(sink, 6, rows[3_000:]), batch(6))
    assert entries(client) == rows


def test_two_drivers_with_one_batch_publish_it_once(redis_url: str, client: redis.Redis) -> None:
    """A driver that was taken for dead, and its successor."""
    rows = texts(20_000)
    sink = stream_sink(redis_url)
    both = [stage(sink, 0, rows[:9_000], rows[9_000:]) for _ in range(2)]
    threads = [threading.Thread(target=sink.publish, args=(staged, batch(0))) for staged in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entries(client)) == sorted(rows)


def test_an_aborted_batch_leaves_nothing(redis_url: str, client: redis.Redis) -> None:
    sink = stream_sink(redis_url)
    staged = stage(sink, 0, texts(1_500), texts(1_500))
    sink.discard(staged[:1], batch(0))  # Spark has the message of one; the other attempt failed at its end
    assert client.keys("*") == []


def test_an_abort_after_the_commit_has_begun_keeps_what_is_recorded(
    redis_url: str, client: redis.Redis
) -> None:
    """Spark also calls abort when commit fails: what the journal promises to the replay must stay."""
    rows = texts(3_000)
    cut = CutSink(redis_url, 1)
    staged = stage(cut, 0, rows)
    with pytest.raises(Cut):
        cut.publish(staged, batch(0))
    cut.discard(staged, batch(0))
    sink = stream_sink(redis_url)
    sink.publish(stage(sink, 0, rows), batch(0))
    assert entries(client) == rows


def test_attempts_that_lost_are_removed_by_the_commit(redis_url: str, client: redis.Redis) -> None:
    sink = stream_sink(redis_url)
    stage(sink, 0, texts(10))  # of a killed driver, or the slower of two attempts
    sink.publish(stage(sink, 0, texts(10)), batch(0))
    assert entries(client) == texts(10)
    assert set(client.keys("*")) == {JOURNAL, STREAM.encode()}


def test_staging_and_journals_expire(redis_url: str, client: redis.Redis) -> None:
    sink = stream_sink(redis_url, stagingSeconds="100", journalSeconds="5000")
    staged = stage(sink, 0, texts(10))
    assert len(client.keys("*")) == 2  # the list, and the set of attempts
    for key in client.keys("*"):
        assert 0 < client.ttl(key) <= 100
    cut = CutSink(redis_url, 0)
    with pytest.raises(Cut):
        cut.publish(staged, batch(0))
    assert (
        client.ttl(JOURNAL) > 5_000
    )  # recorded, it lives as long as the journal (whose sink has the default)
    assert all(client.ttl(key) > 5_000 for key in client.keys("*") if client.type(key) == b"list")
    sink.publish(staged, batch(0))
    assert 100 < client.ttl(JOURNAL) <= 5_000


def test_staging_that_is_gone_is_an_error_and_publishes_nothing(redis_url: str, client: redis.Redis) -> None:
    sink = stream_sink(redis_url)
    staged = stage(sink, 0, texts(10), texts(10))
    client.delete(next(key for key in client.keys("*") if client.type(key) == b"list"))
    with pytest.raises(StagingLostError, match="stagingSeconds"):
        sink.publish(staged, batch(0))
    assert client.xlen(STREAM) == 0
    sink.publish(stage(sink, 0, texts(10)), batch(0))  # nothing was recorded: the next attempt starts over
    assert entries(client) == texts(10)


def test_staging_that_goes_while_it_is_published_is_an_error(redis_url: str, client: redis.Redis) -> None:
    cut = CutSink(redis_url, 1)
    with pytest.raises(Cut):
        cut.publish(stage(cut, 0, texts(3_000)), batch(0))
    client.delete(next(key for key in client.keys("*") if client.type(key) == b"list"))
    sink = stream_sink(redis_url)
    with pytest.raises(StagingLostError, match="rows published before stay") as caught:
        sink.publish(stage(sink, 0, texts(3_000)), batch(0))
    assert "sinkId=query and batchId=0" in caught.value.__notes__[0]
    assert len(entries(client)) == 1_000


def test_staging_that_goes_while_it_is_written_is_an_error(redis_url: str, client: redis.Redis) -> None:
    def batches() -> Iterator[object]:
        yield arrow(texts(10))
        client.flushall()
        yield arrow(texts(10))

    with pytest.raises(StagingLostError, match="staged rows of this task are gone"):
        stream_sink(redis_url).stage(batches(), batch(0), "1")


def test_a_key_of_another_type_is_left_alone(redis_url: str, client: redis.Redis) -> None:
    client.set(STREAM, "not a stream")
    sink = stream_sink(redis_url)
    staged = stage(sink, 0, texts(10))
    with pytest.raises(QueueError, match="WRONGTYPE"):
        sink.publish(staged, batch(0))
    client.delete(STREAM)
    sink.publish(staged, batch(0))
    assert entries(client) == texts(10)


def test_long_and_odd_texts_arrive_as_they_are(redis_url: str, client: redis.Redis) -> None:
    rows = ['{"x":"%s"}' % (character * 300_000) for character in "aü😀"] * 3
    rows += ['{"nul":"\\u0000","line":"\\n"}', ' {"space" : 1}\n', "{}"] * 5
    sink = stream_sink(redis_url)
    staged = [sink.stage(iter([arrow(rows), arrow([]), arrow(rows).slice(3, 2)]), batch(0), "1")]
    assert staged[0].parts > 3  # no step is much longer than a megabyte
    sink.publish(staged, batch(0))
    assert entries(client) == rows + rows[3:5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "null"),
        ("[1]", "JSON object was expected"),
        ('{"secret-1', "truncated"),
        ('{"a": NaN}', "malformed"),
    ],
)
def test_what_no_consumer_could_read_is_refused(
    redis_url: str, client: redis.Redis, text: str | None, reason: str
) -> None:
    with pytest.raises(
        QueuePayloadError, match=f"data of row 3 of this task was refused: .*{reason}"
    ) as caught:
        stream_sink(redis_url).stage(iter([arrow(["{}"]), arrow(["{}", text])]), batch(0), "1")
    assert "secret" not in str(caught.value)
    assert client.xlen(STREAM) == 0


def test_a_server_that_is_away_is_said_without_its_password() -> None:
    with pytest.raises(QueueConnectionError) as caught:
        stream_sink("redis://:hunter2@127.0.0.1:1/0").stage(iter([arrow(["{}"])]), batch(0), "1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("stream", ["reports", "{tenant}:reports"])
def test_all_keys_of_a_stream_are_in_its_slot(stream: str) -> None:
    sink = StreamSink(
        stream_options("redis://localhost", stream=stream),
        DATA,
    )
    slot = key_slot(stream.encode())
    assert key_slot(sink._staging(batch(0), "1").encode()) == slot
    assert key_slot(sink._attempts(batch(0)).encode()) == slot
