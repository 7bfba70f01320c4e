"""The Spark sinks, including staging and commit, against the usual ways to write from executors."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.harness import Bench, timed
from conquiet.embedded import PostgresServer, RedisServer
from conquiet.jobs import migrate, open_store
from conquiet.queue import connect
from conquiet.spark.sink.job_rows import COLUMNS
from conquiet.spark.sink.jobs import JobSink
from conquiet.spark.sink.options import JobOptions, parsed
from conquiet.spark.sink.postgres_staging import PostgresStaging
from conquiet.spark.sink.writers import Batch, Staged

STREAM = "bench:sink"
QUEUE = "bench"
# Like raw.PAYLOAD, with different numbers.
JSON = (
    """concat('{"report_id":"r-', id, '","affiliate_id":"a-17","claimed_views":1200,"claimed_clicks":34}')"""
)


def add_to(bench: Bench, spark: Callable[[], SparkSession], redis_server: Callable[[], RedisServer]) -> None:
    postgres_server = bench.needs(PostgresServer)

    def rows(count: int, *columns: str) -> DataFrame:
        for rival in (Rival, ArrowRival):
            spark().dataSource.register(rival)
        return spark().range(count).selectExpr(*columns)

    def to_stream(source: str, count: int) -> float:
        url = redis_server().url
        with connect(url, socket_timeout=60) as client:
            client.flushall()
            frame = rows(count, f"{JSON} AS data")
            seconds = timed(lambda: _save(frame, source, url=url, stream=STREAM))
            assert client.xlen(STREAM) == count
        return seconds

    def to_jobs(source: str, count: int) -> float:
        dsn = postgres_server().dsn
        open_store(dsn).close()
        migrate(dsn, 0)  # an empty table each time
        open_store(dsn).close()
        frame = rows(count, "concat('job-', id) AS id", f"{JSON} AS payload")
        seconds = timed(lambda: _save(frame, source, dsn=dsn, queue=QUEUE))
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT count(*) FROM conquiet_jobs").fetchone() == (count,)
        return seconds

    bench.compare(
        "stream_sink",
        unit="rows",
        count=1_000_000,
        ours=lambda count: to_stream("conquiet", count),
        pipeline=lambda count: to_stream("rival", count),
        arrow_pipeline=lambda count: to_stream("arrow_rival", count),
    )
    bench.compare(
        "job_sink",
        unit="rows",
        count=500_000,
        ours=lambda count: to_jobs("conquiet", count),
        write_row=lambda count: to_jobs("rival", count),
        block_copy=lambda count: to_jobs("arrow_rival", count),
    )


def _save(frame: DataFrame, source: str, **options: str) -> None:
    frame.write.format(source).mode("append").options(**options).save()


class Rival(DataSource):
    """Writers as Spark's documentation shows them, row by row."""

    @classmethod
    def name(cls) -> str:
        return "rival"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if "url" in self.options:
            return PipelineWriter(self.options["url"], self.options["stream"])
        return WriteRowWriter(self.options, schema)


class ArrowRival(Rival):
    """The same from Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return "arrow_rival"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if "url" in self.options:
            return ArrowPipelineWriter(self.options["url"], self.options["stream"])
        return BlockCopyWriter(self.options, schema)


class PipelineWriter(DataSourceWriter):
    """redis-py's pipeline, straight into the stream: a repeated task repeats its rows."""

    def __init__(self, url: str, stream: str) -> None:
        self._url = url
        self._stream = stream

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.write_texts(row.data for row in iterator)

    def write_texts(self, texts: Iterator[str]) -> WriterCommitMessage:
        with connect(self._url, socket_timeout=60) as client:
            while part := list(itertools.islice(texts, 1_000)):
                pipeline = client.pipeline(transaction=False)
                for text in part:
                    pipeline.xadd(self._stream, {"data": text})
                pipeline.execute()
        return WriterCommitMessage()


class ArrowPipelineWriter(PipelineWriter, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_texts(text for batch in iterator for text in batch.column("data").to_pylist())


class WriteRowWriter(DataSourceWriter):
    """Writes Spark's rows one by one into the same staging with psycopg's `write_row`; same commit, no checks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        parsed_options = parsed(options, streaming=False)
        assert isinstance(parsed_options, JobOptions)
        self._options = parsed_options
        JobSink(self._options, schema)  # creates the tables
        self._batch = Batch(secrets.token_hex(8), 0)

    def write(self, iterator: Iterator[Any]) -> Staged:
        attempt = secrets.randbits(62)
        with psycopg.connect(self._options.dsn) as connection, connection.cursor().copy(COPY) as copy:
            rows = self.copy_rows(copy, attempt, iterator)
        return Staged(self._batch, f"{attempt << 1:x}", rows, 1)

    def copy_rows(self, copy: psycopg.Copy, attempt: int, rows: Iterator[Any]) -> int:
        number = 0
        for row in rows:
            copy.write_row((attempt, row.id, row.payload, 5, 0.0, None))
            number += 1
        return number

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        attempts = [int(one.attempt, 16) >> 1 for one in staged]
        PostgresStaging(self._options).publish(attempts, sum(one.rows for one in staged), self._batch)


class BlockCopyWriter(WriteRowWriter, DataSourceArrowWriter):
    """The same from Arrow batches, each copied as one block of text."""

    def copy_rows(self, copy: psycopg.Copy, attempt: int, rows: Iterator[Any]) -> int:
        number = 0
        for batch in rows:
            values = zip(batch.column("id").to_pylist(), batch.column("payload").to_pylist(), strict=True)
            # These texts have no tab, newline or backslash, so COPY takes them as they are.
            copy.write("".join([f"{attempt}\t{id_}\t{payload}\t5\t0.0\t\\N\n" for id_, payload in values]))
            number += batch.num_rows
        return number


COPY = f"COPY conquiet_spark_staging (attempt, {', '.join(COLUMNS)}) FROM STDIN"
