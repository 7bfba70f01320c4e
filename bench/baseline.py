"""The baselines: the raw loops and the peers on this machine, without conquiet."""

from __future__ import annotations

import tempfile
from itertools import count as numbers
from pathlib import Path

import psycopg
import redis

from bench import raw
from bench.harness import Bench, timed
from bench.peers import PGQUEUER_BATCH, drain
from conquiet.embedded import PostgresServer, RedisServer

BENCH = Bench("baseline")
STREAM = "bench:raw"

redis_server = BENCH.needs(RedisServer)
postgres_server = BENCH.needs(PostgresServer)
folder = BENCH.needs(lambda: tempfile.TemporaryDirectory(prefix="conquiet-bench-"))
fresh = numbers()


def new_database() -> str:
    return postgres_server().create_database(f"peer_{next(fresh)}")


def new_file() -> str:
    return str(Path(folder()) / f"peer_{next(fresh)}.db")


def raw_stream_add(count: int) -> float:
    with redis.Redis.from_url(redis_server().url) as client:
        raw.stream_create(client, STREAM)
        return timed(lambda: raw.stream_add(client, STREAM, count))


def raw_stream_drain(count: int) -> float:
    with redis.Redis.from_url(redis_server().url) as client:
        raw.stream_create(client, STREAM)
        raw.stream_add(client, STREAM, count)
        return timed(lambda: raw.stream_read_ack(client, STREAM, count))


def raw_jobs_insert(count: int) -> float:
    with psycopg.connect(postgres_server().dsn, autocommit=True) as connection:
        raw.jobs_create(connection)
        return timed(lambda: raw.jobs_insert(connection, count))


def raw_jobs_drain(count: int) -> float:
    with psycopg.connect(postgres_server().dsn, autocommit=True) as connection:
        raw.jobs_create(connection)
        raw.jobs_insert(connection, count)
        return timed(lambda: raw.jobs_claim_ack(connection, count))


BENCH.compare("redis_enqueue", unit="messages", count=20_000, raw=raw_stream_add)
BENCH.compare(
    "redis_drain",
    unit="messages",
    count=3_000,
    raw=raw_stream_drain,
    dramatiq=drain("dramatiq", lambda: redis_server().url),
)
BENCH.compare("postgres_enqueue", unit="jobs", count=20_000, raw=raw_jobs_insert)
BENCH.compare(
    "postgres_drain",
    unit="jobs",
    count=1_000,
    raw=raw_jobs_drain,
    pgqueuer=drain("pgqueuer", new_database),
    pgqueuer_batched=drain("pgqueuer", new_database, str(PGQUEUER_BATCH)),
    procrastinate=drain("procrastinate", new_database),
)
BENCH.compare(
    "sqlite_drain",
    unit="jobs",
    count=1_000,
    huey=drain("huey", new_file),
    huey_fsync=drain("huey", new_file, "fsync"),
)
