"""The corpus through the Spark sinks and the source, called as tasks and drivers do: stored as data, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from redis import Redis

from conquiet.errors import JobConfigError, QueueConfigError, QueuePayloadError
from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.options import JobOptions, StreamOptions, parsed
from conquiet.spark.sink.streams import StreamSink
from conquiet.spark.sink.writers import Batch
from conquiet.spark.source.ledger import Ledger
from conquiet.spark.source.options import SOURCE_SCHEMA, SourceOptions
from conquiet.spark.source.reader import BlockReader
from tests.abuse.corpus import Hostile, corpus
from tests.abuse.database import tables

JOBS = StructType([StructField(name, StringType()) for name in ("id", "payload", "correlation_id")])


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client
        assert client.exists("pwned") == 0


@pytest.fixture(params=["sqlite", "postgresql"])
def sink_dsn(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


def strings(values: Sequence[bytes]) -> pa.Array:
    """A column of strings as Spark passes them: it has not checked that they are UTF-8."""
    return pa.array(values, pa.binary()).view(pa.string())


def taken(
    rows: Sequence[Hostile],
    write: Callable[[Sequence[Hostile]], None],
    refusal: type[Exception],
    every: int = 1,
) -> None:
    """Write the rows that must be refused one by one, each between good ones, and then all others together."""
    good = Hostile("good", b'{"good":true}', {"good": True})
    for one in rows[::every]:
        if one.payload is None:
            with pytest.raises(refusal, match="Nothing is published") as error:
                write([good, one, good])
            assert str(error.value).isprintable()
            assert len(str(error.value)) < 2_000
    write([one for one in rows if one.payload is not None])


def stream_sink(url: str, schema: StructType, stream: str = "s") -> StreamSink:
    options = parsed({"url": url, "stream": stream}, streaming=False)
    assert isinstance(options, StreamOptions)
    return StreamSink(options, schema)


def job_sink(dsn: str, queue: str = "q") -> JobSink:
    options = parsed({"dsn": dsn, "queue": queue}, streaming=False)
    assert isinstance(options, JobOptions)
    return JobSink(options, JOBS)


class Batches:
    """Writes one batch after the other into a sink, as a query does."""

    def __init__(self, sink: StreamSink | JobSink, query: str = "query") -> None:
        self.sink = sink
        self.query = query
        self.number = 0

    def write(self, **columns: pa.Array) -> None:
        self.number += 1
        batch, attempt = Batch(self.query, self.number), f"{self.number:x}"
        rows = pa.record_batch(list(columns.values()), names=list(columns))
        self.sink.publish([self.sink.stage(iter([rows]), batch, attempt)], batch)


def stream_payloads(redis: Redis, stream: str = "s") -> list[dict[str, object]]:
    queue = RedisStreamsQueue(redis, QueueConfig(stream, "readers", "reader"))
    return [message.payload for message in queue.read(1_000, 10_000)]


def test_every_input_as_the_data_of_a_stream(redis: Redis, redis_url: str) -> None:
    batches = Batches(stream_sink(redis_url, StructType([StructField("data", StringType())])))
    taken(corpus(), lambda rows: batches.write(data=strings([row.raw for row in rows])), QueuePayloadError)
    assert stream_payloads(redis) == [one.payload for one in corpus() if one.payload is not None]


def test_every_input_as_a_value_and_as_a_column_of_rows(redis: Redis, redis_url: str) -> None:
    batches = Batches(stream_sink(redis_url, StructType([StructField("value", StringType())])))
    as_values = [
        Hostile(one.name, one.raw, {"value": one.text} if one.is_unicode else None) for one in corpus()
    ]
    taken(as_values, lambda rows: batches.write(value=strings([row.raw for row in rows])), QueuePayloadError)
    assert stream_payloads(redis) == [one.payload for one in as_values if one.payload is not None]
    names = [one.text for one in corpus() if one.is_unicode and one.text != "data"]
    for number, name in enumerate(names[::10]):
        stream = f"s{number}"
        sink = stream_sink(redis_url, StructType([StructField(name, StringType())]), stream)
        Batches(sink).write(**{name: pa.array([name])})
        assert stream_payloads(redis, stream) == [{name: name}]


def test_every_input_as_the_payload_of_a_job(sink_dsn: str) -> None:
    batches = Batches(job_sink(sink_dsn))
    before = tables(sink_dsn)

    def write(rows: Sequence[Hostile]) -> None:
        ids = [f"{row.name}-{number}" for number, row in enumerate(rows)]
        batches.write(id=pa.array(ids), payload=strings([row.raw for row in rows]))

    taken(corpus(), write, JobConfigError, every=1 if sink_dsn.startswith("sqlite") else 7)
    with open_store(sink_dsn) as store:
        jobs = {job.id.rpartition("-")[0]: job.payload for job in store.list(limit=10_000)}
    assert jobs == {one.name: one.payload for one in corpus() if one.payload is not None}
    assert tables(sink_dsn) == before


def test_every_input_names_a_job_or_is_refused(sink_dsn: str) -> None:
    batches = Batches(job_sink(sink_dsn))
    before = tables(sink_dsn)
    names = [Hostile(one.name, one.raw, {} if one.is_name else None) for one in corpus()]

    def write(rows: Sequence[Hostile]) -> None:
        payloads = pa.array([json.dumps({"name": row.name}) for row in rows])
        ids = strings([row.raw for row in rows])
        batches.write(id=ids, payload=payloads, correlation_id=ids)

    taken(names, write, JobConfigError)
    with open_store(sink_dsn) as store:
        for one in corpus():
            if one.is_name:
                job = store.get(one.text)
                assert job is not None
                assert (job.payload, job.correlation_id) == ({"name": one.name}, one.text)
        assert len(store.list(limit=10_000)) == sum(one.is_name for one in corpus())
    assert tables(sink_dsn) == before


def test_every_input_names_a_stream_a_group_and_a_consumer_of_a_source(redis: Redis, redis_url: str) -> None:
    for one in corpus():
        name, places = one.text, ("stream", "group", "consumer")
        if not name or not one.is_unicode:
            for place in places:
                options = {"url": redis_url, **dict.fromkeys(places, "x"), place: name}
                with pytest.raises(QueueConfigError, match="needs the option|not valid Unicode"):
                    SourceOptions.parse(options)
            continue
        redis.xadd(name, {"data": "{}"}, id="1-1")
        ledger = Ledger(redis, name, name, name, name)
        assert ledger.open() == []
        claim = ledger.claim(10)
        assert claim is not None
        with BlockReader(redis_url, name, SOURCE_SCHEMA) as reader:
            assert reader.read(claim.block.lo, claim.block.hi).column(1).to_pylist() == ["{}"]
        assert ledger.settle(claim.block) == 1
        redis.flushall()


def test_every_input_names_a_stream_or_a_queue_of_a_sink(redis: Redis, redis_url: str, folder: Path) -> None:
    dsn = f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
    row = {"id": pa.array(["a"]), "payload": pa.array(["{}"])}
    for one in corpus()[::7]:
        name = one.text
        if one.is_unicode and name:
            sink = stream_sink(redis_url, StructType([StructField("data", StringType())]), name)
            Batches(sink).write(data=pa.array(["{}"]))
            assert stream_payloads(redis, name) == [{}]
            redis.flushall()
        else:
            with pytest.raises(QueueConfigError, match="needs the option|not valid Unicode"):
                stream_sink(redis_url, StructType([StructField("data", StringType())]), name)
        if one.is_name:
            Batches(job_sink(dsn, name), one.name).write(**row | {"id": pa.array([one.name])})
            with open_store(dsn) as store:
                assert [job.id for job in store.list(queue=name)] == [one.name]
        else:
            with pytest.raises(JobConfigError, match="needs the option|not valid Unicode|must"):
                job_sink(dsn, name)
