"""Private servers for demos and tests, and Java for Spark. Not needed in production."""

from conquiet.embedded.binaries import (
    ServerBinary,
    available_postgres_binaries,
    available_redis_binaries,
    find_postgres,
    find_redis,
)
from conquiet.embedded.java import JavaRuntime, find_java, prepare_spark_environment
from conquiet.embedded.postgres import PostgresServer
from conquiet.embedded.redis import RedisServer
from conquiet.embedded.server import PrivateServer

__all__ = [
    "JavaRuntime",
    "PostgresServer",
    "PrivateServer",
    "RedisServer",
    "ServerBinary",
    "available_postgres_binaries",
    "available_redis_binaries",
    "find_java",
    "find_postgres",
    "find_redis",
    "prepare_spark_environment",
]
