"""The Spark sinks, staging and commit included, against the usual ways to write from executors."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bench.harness import Bench, timed
from conquiet.embedded import PostgresServer, RedisServer
from conquiet.jobs import migrate, open_store
from conquiet.pipeline.job_rows import COLUMNS
from conquiet.pipeline.job_sink import JobSink
from conquiet.pipeline.postgres_staging import PostgresStaging
from conquiet.pipeline.sink_options import JobOptions
from conquiet.pipeline.sinks import Batch, ConquietBatchWriter
from conquiet.queue import connect

STREAM = "bench:sink"
QUEUE = "bench"
# As raw.PAYLOAD, with numbers that differ.
JSON = """concat('{"report_id":"r-', id, '","affiliate_id":"a-17","claimed_views":1200,"claimed_clicks":34}')"""


def add_to(bench: Bench, spark: Callable[[], SparkSession], redis_server: Callable[[], RedisServer]) -> None:
    postgres_server = bench.needs(PostgresServer)

    def rows(count: int, *columns: str) -> DataFrame:
        spark().dataSource.register(Rival)
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
    )
    bench.compare(
        "job_sink",
        unit="rows",
        count=500_000,
        ours=lambda count: to_jobs("conquiet", count),
        write_row=lambda count: to_jobs("rival", count),
    )


def _save(frame: DataFrame, source: str, **options: str) -> None:
    frame.write.format(source).mode("append").options(**options).save()


class Rival(DataSource):
    """The same Spark around other ways to write."""

    @classmethod
    def name(cls) -> str:
        return "rival"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if "url" in self.options:
            return PipelineWriter(self.options["url"], self.options["stream"])
        return WriteRowWriter(self.options, schema, overwrite)


class PipelineWriter(DataSourceArrowWriter):
    """redis-py's pipeline, straight into the stream: a task that is repeated repeats its rows."""

    def __init__(self, url: str, stream: str) -> None:
        self._url = url
        self._stream = stream

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with connect(self._url, socket_timeout=60) as client:
            for batch in iterator:
                texts = batch.column("data").to_pylist()
                for begin in range(0, len(texts), 1_000):
                    pipeline = client.pipeline(transaction=False)
                    for text in texts[begin : begin + 1_000]:
                        pipeline.xadd(self._stream, {"data": text})
                    pipeline.execute()
        return WriterCommitMessage()


class WriteRowWriter(ConquietBatchWriter):
    """Our sink, but for psycopg's `write_row` into the staging table, and no checks."""

    def make_sink(self, options: Any, schema: StructType) -> JobSink:
        sink = JobSink(options, schema)
        sink._staging = WriteRowStaging(options)
        return sink

    def stage(self, batches: Iterator[Any], batch: Batch) -> Any:
        staging = WriteRowStaging(self.options)  # type: ignore[arg-type]
        attempt = secrets.token_hex(8)
        from conquiet.pipeline.sinks import Staged

        return Staged(batch, attempt, staging.stage_rows(batches, batch, int(attempt, 16) >> 1), 1)


class WriteRowStaging(PostgresStaging):
    def __init__(self, options: JobOptions) -> None:
        super().__init__(options)

    def stage_rows(self, batches: Iterator[Any], batch: Batch, attempt: int) -> int:
        rows = 0
        with self._connection("stage") as connection, connection.cursor() as cursor:
            columns = ", ".join(COLUMNS)
            with cursor.copy(f"COPY conquiet_spark_staging (attempt, {columns}) FROM STDIN") as copy:
                for arrow in batches:
                    ids, payloads = (arrow.column(name).to_pylist() for name in ("id", "payload"))
                    for job_id, payload in zip(ids, payloads, strict=True):
                        copy.write_row((attempt, job_id, payload, 5, 0.0, None))
                    rows += len(ids)
        return rows
