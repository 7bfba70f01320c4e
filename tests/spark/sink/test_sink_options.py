"""What the sinks refuse, and with which message."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

from conquiet.errors import ConquietError, JobConfigError, QueueConfigError
from conquiet.spark.sink.options import JobOptions, StreamOptions, parsed
from conquiet.spark.sink.writers import ConquietBatchWriter, ConquietStreamWriter
from tests.spark.sink.sinking import DATA, JOBS

URL = {"url": "redis://localhost", "stream": "s"}
DSN = {"dsn": "sqlite:////tmp/jobs.db", "queue": "q"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one pair"),
        (URL | DSN, "not both"),
        ({"url": "redis://localhost"}, r'needs the option stream: .option\("stream", …\)'),
        ({"queue": "q"}, "needs the option dsn"),
        (URL | {"qeue": "q"}, "no option qeue .* there are: url, stream"),
        (URL | {"stagingSeconds": "soon"}, "stagingSeconds must be a whole number of at least 1, not 'soon'"),
        (URL | {"journalSeconds": "0"}, "journalSeconds must be a whole number of at least 1"),
        (URL | {"sinkId": "", "batchId": "1"}, "sinkId must be 1 to 200 printable characters"),
        (URL | {"sinkId": "me"}, "needs both options, sinkId and batchId"),
        (URL | {"batchId": "1"}, "needs both options, sinkId and batchId"),
        (URL | {"sinkId": "me", "batchId": "9" * 5_000}, "batchId must be .* less than 9007199254740992"),
        (DSN | {"maxRetries": str(2**31)}, "maxRetries must be .* less than 2147483648, not 2147483648"),
        (DSN | {"maxRetries": "-1"}, "maxRetries must be a whole number of at least 0"),
        (
            DSN | {"dsn": "memory://"},
            r"memory:// holds jobs in one process, but Spark writes from many: use postgresql",
        ),
        (DSN | {"dsn": "sqlite:///jobs.db"}, r"use sqlite:////absolute/path.db, with four slashes"),
    ],
)
@pytest.mark.clause("P-05")
def test_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConquietError, match=message) as caught:
        parsed(options, streaming=False)
    assert isinstance(caught.value, ValueError)


def test_spark_counts_the_batches_of_a_streaming_query() -> None:
    with pytest.raises(QueueConfigError, match="Spark counts"):
        parsed(URL | {"batchId": "1"}, streaming=True)


def test_accepted_whatever_the_case_of_the_names() -> None:
    stream = parsed({"URL": "redis://localhost", "Stream": "S", "checkpointLocation": "x"}, streaming=True)
    assert stream == StreamOptions(None, None, 86_400, 604_800, "redis://localhost", "S")
    jobs = parsed(DSN | {"sinkid": "me", "BATCHID": "1794994677147", "maxretries": "0"}, streaming=False)
    assert jobs == JobOptions("me", 1794994677147, 86_400, 604_800, "sqlite:////tmp/jobs.db", "q", 0)


@pytest.mark.parametrize("writer", [ConquietBatchWriter, ConquietStreamWriter])
def test_nothing_is_overwritten(writer: type[ConquietBatchWriter]) -> None:
    with pytest.raises(QueueConfigError, match='only appends: use mode\\("append"\\)'):
        writer(URL, DATA, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("payload", StringType())], "jobs need a column id; it identifies a job that is written again"),
        ([("id", StringType())], "jobs need a column payload"),
        ([("id", IntegerType()), ("payload", StringType())], "the column id must be a string, not int"),
        ([*JOBS.fields, ("colour", StringType())], "jobs have no column colour: select id, payload and"),
        (
            [("id", StringType()), ("payload", MapType(StringType(), StringType()))],
            "payload must be a string of JSON",
        ),
    ],
)
def test_columns_that_are_not_those_of_a_job(fields: list[object], message: str) -> None:
    schema = StructType([StructField(*field) if isinstance(field, tuple) else field for field in fields])  # type: ignore[misc]
    with pytest.raises(JobConfigError, match=message):
        ConquietBatchWriter(DSN, schema, False)


def test_a_url_that_is_none() -> None:
    with pytest.raises(QueueConfigError, match="not a usable Redis URL"):
        ConquietBatchWriter({"url": "localhost:6379", "stream": "s"}, DATA, False)


def test_rows_without_columns_are_not_taken_for_no_rows() -> None:
    with pytest.raises(QueueConfigError, match="without columns has nothing to write"):
        ConquietBatchWriter(URL, StructType(), False)


def test_a_column_data_that_is_no_text() -> None:
    schema = StructType([StructField("data", BinaryType())])
    with pytest.raises(QueueConfigError, match=r'make it with to_json\(col\("data"\)\)'):
        ConquietBatchWriter(URL, schema, False)
