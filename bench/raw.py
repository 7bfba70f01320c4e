"""The raw loops: the fewest commands and statements that do the same work, with nothing else.

They are the baseline of the benchmarks: no validation, no heartbeats, no error handling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import redis

PAYLOAD = '{"report_id":"r-000001","affiliate_id":"a-17","claimed_views":1200,"claimed_clicks":34}'
GROUP = "bench"
CONSUMER = "bench-1"


def batches(count: int, size: int) -> Iterator[int]:
    """Yield the sizes of the batches that make up `count`."""
    for begin in range(0, count, size):
        yield min(size, count - begin)


def stream_create(client: redis.Redis, stream: str) -> None:
    client.delete(stream)
    client.xgroup_create(stream, GROUP, id="0-0", mkstream=True)


def stream_add(client: redis.Redis, stream: str, count: int, batch: int = 500) -> None:
    """XADD, pipelined."""
    for size in batches(count, batch):
        pipeline = client.pipeline(transaction=False)
        for _ in range(size):
            pipeline.xadd(stream, {"data": PAYLOAD})
        pipeline.execute()


def stream_read_ack(
    client: redis.Redis,
    stream: str,
    count: int,
    batch: int = 1,
    decode: Callable[[bytes], object] | None = None,
) -> None:
    """XREADGROUP and XACK until `count` entries are done; `decode` is the work on each entry."""
    done = 0
    while done < count:
        answer: Any = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=batch, block=1000)
        entries = answer[0][1]
        if decode is not None:
            for _, fields in entries:
                decode(fields[b"data"])
        client.xack(stream, GROUP, *(entry for entry, _ in entries))
        done += len(entries)


JOBS = """
CREATE TABLE IF NOT EXISTS raw_jobs (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'Ready',
    payload text NOT NULL,
    lease_token uuid,
    lease_expires_at timestamptz
);
CREATE INDEX IF NOT EXISTS raw_jobs_ready ON raw_jobs (seq) WHERE state = 'Ready';
TRUNCATE raw_jobs;
"""
INSERT = "INSERT INTO raw_jobs (payload) SELECT unnest(%s::text[])"
CLAIM = """
WITH next AS (
    SELECT seq FROM raw_jobs WHERE state = 'Ready' ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE raw_jobs SET state = 'InFlight', lease_token = gen_random_uuid(),
    lease_expires_at = clock_timestamp() + interval '5 seconds'
FROM next WHERE raw_jobs.seq = next.seq
RETURNING raw_jobs.seq, lease_token, payload
"""
ACK = """
UPDATE raw_jobs SET state = 'Succeeded' FROM unnest(%s::bigint[], %s::uuid[]) AS done (seq, token)
WHERE raw_jobs.seq = done.seq AND lease_token = done.token
"""


def jobs_create(connection: psycopg.Connection) -> None:
    connection.execute(JOBS)


def jobs_insert(connection: psycopg.Connection, count: int, batch: int = 500) -> None:
    for size in batches(count, batch):
        connection.execute(INSERT, ([PAYLOAD] * size,))


def jobs_claim_ack(connection: psycopg.Connection, count: int, batch: int = 1) -> None:
    """Claim and acknowledge, in a transaction each, until `count` jobs are done."""
    done = 0
    while done < count:
        rows = connection.execute(CLAIM, (batch,)).fetchall()
        connection.execute(ACK, ([row[0] for row in rows], [row[1] for row in rows]))
        done += len(rows)
