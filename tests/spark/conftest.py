"""Fixtures for everything on Spark: one session for the whole run, and one Redis that a test may flush.

spark       a quiet local[2] session, shared by all tests: starting one takes longer than most tests
one_redis   the URL of a flushed Redis (one flavour only; `redis_url` runs a test once per flavour)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from pyspark.sql import SparkSession

from conquiet.embedded import RedisServer
from conquiet.spark import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = spark_session(
        "conquiet tests",
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-Dconquiet.tests=true",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.adaptive.coalescePartitions.initialPartitionNum": 2,  # tests have a few rows
            "spark.sql.warehouse.dir": warehouse,
            "spark.ui.showConsoleProgress": False,
            "spark.python.authenticate.socketTimeout": "120s",  # a Python process may start slowly on a busy machine
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def _one_redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def one_redis(_one_redis_server: RedisServer) -> str:
    with redis.Redis.from_url(_one_redis_server.url) as client:
        client.flushall()
    return _one_redis_server.url
