"""The sinks in Spark: batch and streaming writes, and batches that Spark replays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from tests.spark.sink.sinking import QUEUE, STREAM, entries, texts

pytestmark = pytest.mark.clause("P-05")


@pytest.fixture
def sqlite_dsn(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def frame(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).repartition(3).selectExpr("""concat('{"n":', id, '}') AS data""")


def test_a_dataframe_goes_to_a_stream_and_its_consumers_can_read_it(
    spark: SparkSession, one_redis: str
) -> None:
    frame(spark, 5_000).write.format("conquiet").mode("append").options(url=one_redis, stream=STREAM).save()
    with connect(one_redis) as client:
        queue = RedisStreamsQueue(client, QueueConfig(STREAM, "readers", "reader-1"))
        messages = queue.read(1_000, 6_000)
    assert sorted(message.payload["n"] for message in messages) == list(range(5_000))


def test_every_batch_write_is_a_new_one(spark: SparkSession, one_redis: str) -> None:
    for _ in range(2):
        frame(spark, 10).write.format("conquiet").mode("append").options(url=one_redis, stream=STREAM).save()
    with redis.Redis.from_url(one_redis) as client:
        assert sorted(entries(client)) == sorted(texts(10) * 2)


def test_a_named_batch_is_written_once(spark: SparkSession, one_redis: str) -> None:
    options = {"url": one_redis, "stream": STREAM, "sinkId": "nightly"}
    for number in (7, 7, 8):
        frame(spark, 10).write.format("conquiet").mode("append").options(batchId=number, **options).save()
    with redis.Redis.from_url(one_redis) as client:
        assert sorted(entries(client)) == sorted(texts(10) * 2)


def test_without_a_column_data_whole_rows_are_written(spark: SparkSession, one_redis: str) -> None:
    rows = spark.sql(
        "SELECT 1 AS a, timestamp'2026-01-02 03:04:05Z' AS at, cast(NULL AS int) AS b, array('x') AS c"
    )
    rows.write.format("conquiet").mode("append").options(url=one_redis, stream=STREAM).save()
    with redis.Redis.from_url(one_redis) as client:
        assert json.loads(entries(client)[0]) == {"a": 1, "at": "2026-01-02T03:04:05.000000Z", "c": ["x"]}


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, one_redis: str) -> None:
    """One task stages its rows, another cannot: all of them are removed."""

    def after_the_other(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """Spark aborts without waiting for the tasks that it kills: one that stages after that would be no witness."""
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            with redis.Redis.from_url(one_redis) as client:
                while not client.keys("*:staging:*"):
                    time.sleep(0.01)
        yield from batches

    rows = (
        spark.range(0, 4_000, 1, 2)
        .selectExpr("if(id = 3999, 'hunter2', '{}') AS data")
        .mapInArrow(after_the_other, "data string")
    )
    with pytest.raises(
        PySparkException, match="data of row 2000 of this task was refused: not UTF-8 JSON"
    ) as caught:
        rows.write.format("conquiet").mode("append").options(url=one_redis, stream=STREAM).save()
    assert "hunter2" not in str(caught.value)
    with redis.Redis.from_url(one_redis) as client:
        assert client.keys("*") == []


def test_a_dataframe_goes_to_a_job_store(spark: SparkSession, postgres_dsn: str) -> None:
    jobs = spark.range(500).selectExpr(
        "concat('job-', id) AS id", "'{}' AS payload", "cast(id % 7 AS int) AS priority"
    )
    for _ in range(2):  # the second time, the ids exist
        jobs.write.format("conquiet").mode("append").options(dsn=postgres_dsn, queue=QUEUE).save()
    with open_store(postgres_dsn) as store:
        assert sorted(job.id for job in store.list(limit=1_000)) == sorted(f"job-{n}" for n in range(500))
        assert {job.priority for job in store.claim(QUEUE, 10)} == {0}


def test_sqlite_on_a_local_master(spark: SparkSession, sqlite_dsn: str) -> None:
    jobs = spark.range(500).selectExpr("concat('job-', id) AS id", "'{}' AS payload", "0.5 AS delay_seconds")
    jobs.write.format("conquiet").mode("append").options(dsn=sqlite_dsn, queue=QUEUE).save()
    with open_store(sqlite_dsn) as store:
        stats = store.stats(QUEUE)[QUEUE]
    assert stats.ready + stats.delayed == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dsn": "memory://", "queue": "q"}, "memory:// holds jobs in one process"),
        ({"url": "redis://localhost", "stream": "s", "colour": "red"}, "has no option colour"),
    ],
)
def test_what_is_refused_is_told_to_the_caller(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        frame(spark, 1).write.format("conquiet").mode("append").options(**options).save()
    with pytest.raises(PySparkException, match='only appends: use mode\\("append"\\)'):
        frame(spark, 1).write.format("conquiet").mode("overwrite").options(
            url="redis://localhost", stream="s"
        ).save()


class Lines:
    """A streaming query from files of lines to a sink, one file per batch."""

    def __init__(self, spark: SparkSession, folder: Path, columns: list[str], **options: str) -> None:
        self._spark = spark
        self._folder = folder
        self._columns = columns
        self._options = options
        (folder / "lines").mkdir()

    def add(self, lines: list[str]) -> None:
        count = len(list((self._folder / "lines").iterdir()))
        (self._folder / "lines" / f"{count:04}").write_text("\n".join(lines))

    def run(self) -> None:
        source = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._folder / "lines"))
        query = (
            source.repartition(2)
            .selectExpr(*self._columns)
            .writeStream.format("conquiet")
            .options(**self._options)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if the driver had died between the sink's commit and its own."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(
            (path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_streaming_query_to_a_stream(spark: SparkSession, one_redis: str, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, ["value AS data"], url=one_redis, stream=STREAM)
    lines.add(texts(2_500))
    lines.add(texts(10, begin=2_500))
    lines.run()
    for begin in (2_510, 2_520):
        lines.forget_last_commit()  # the last batch is written again
        lines.add(texts(10, begin=begin))
        lines.run()
    with redis.Redis.from_url(one_redis) as client:
        assert sorted(entries(client)) == sorted(texts(2_530))
        assert len(client.keys("*")) == 2  # the stream and the journal


def test_a_streaming_query_to_a_job_store(spark: SparkSession, postgres_dsn: str, tmp_path: Path) -> None:
    columns = ["concat('job-', get_json_object(value, '$.n')) AS id", "value AS payload"]
    lines = Lines(spark, tmp_path, columns, dsn=postgres_dsn, queue=QUEUE)
    lines.add(texts(100))
    lines.run()
    lines.forget_last_commit()
    with open_store(postgres_dsn) as store:
        assert len(store.ack_many(store.claim(QUEUE, 1_000))) == 100
        assert store.prune(0) == 100
        lines.add(texts(10, begin=100))
        lines.run()
        assert sorted(job.id for job in store.list(limit=1_000)) == sorted(
            f"job-{n}" for n in range(100, 110)
        )


def test_a_query_that_begins_anew_writes_anew(spark: SparkSession, one_redis: str, tmp_path: Path) -> None:
    """Its batches have the same numbers; without its checkpoint it is another query."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        lines = Lines(spark, tmp_path / name, ["value AS data"], url=one_redis, stream=STREAM)
        lines.add(texts(10))
        lines.run()
    with redis.Redis.from_url(one_redis) as client:
        assert sorted(entries(client)) == sorted(texts(10) * 2)
