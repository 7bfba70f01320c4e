"""Drains while another session holds an old snapshot, so that PostgreSQL removes no dead rows: how much slower is the end?

The figure is the rate at the end divided by the rate at the beginning: of the tenths of all jobs before 98 % and after 2 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as numbers

import psycopg

from bench.fleet import fill, workers
from bench.harness import Bench
from bench.peers import FOLDER, PGQUEUER_BATCH, PYTHON
from conquiet.embedded import PostgresServer
from conquiet.jobs import open_store

BENCH = Bench("bloat")
JOBS = 1_000_000
WORKERS = 4
COUNTED = "SELECT coalesce(sum(jobs), 0) FROM conquiet_counts WHERE state = 'Succeeded'"

server = BENCH.needs(PostgresServer)
fresh = numbers()


@contextmanager
def old_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT 1")
        yield


def slowdown(times: list[tuple[float, int]], count: int) -> float:
    """Return the rate at the end, divided by that at the beginning, of (seconds, jobs done) in order."""

    def when(share: float) -> float:
        return next(seconds for seconds, done in times if done >= share * count)

    return (when(0.12) - when(0.02)) / (when(0.98) - when(0.88))


def ours(count: int) -> float:
    dsn = server().create_database(f"bloat_{next(fresh)}")
    with open_store(dsn):
        fill(dsn, "nothing", count)
    times = []
    with (
        old_snapshot(dsn),
        psycopg.connect(dsn, autocommit=True) as observer,
        workers(dsn, WORKERS) as running,
    ):
        done = 0
        while done < count:
            time.sleep(0.02)
            ((done,),) = observer.execute(COUNTED).fetchall()
            times.append((time.perf_counter(), int(done)))
        running.wait(60)
    return slowdown(times, count)


def of_peer(peer: str, share: float, *settings: str, count: int) -> float:
    """One worker of a peer; a slow one gets a share of the jobs."""
    dsn = server().create_database(f"bloat_{next(fresh)}")
    with old_snapshot(dsn):
        result = subprocess.run(
            [PYTHON, FOLDER / f"{peer}.py", str(round(count * share)), *settings],
            env={**os.environ, "BENCH_TARGET": dsn},  # not an argument: it may contain a password
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    told = json.loads(result.stdout.splitlines()[-1])
    return slowdown([(at, done) for at, done in told["times"]], told["jobs"])


def pgqueuer(count: int) -> float:
    return of_peer("pgqueuer", 0.1, str(PGQUEUER_BATCH), count=count)


def procrastinate(count: int) -> float:
    return of_peer("procrastinate", 0.01, count=count)


for _name, _measure in (("ours", ours), ("pgqueuer", pgqueuer), ("procrastinate", procrastinate)):
    BENCH.figure(
        f"{_name}_end_vs_beginning", unit="of the rate at the beginning", measure=_measure, count=JOBS
    )
