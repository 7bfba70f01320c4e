"""Power cuts, simulated: what was acknowledged and synced survives; what the weaker settings lose is measured."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.flow import run
from conquiet.jobs import JobState, open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.faults.power import QUIET, RedisPower, cut_postgres, flushed

ROOT = Path(__file__).parents[2]
campaign = pytest.mark.campaign


def losses(lost: list[int], seconds: list[float] | None = None) -> dict[str, object]:
    """The extra figures of a setting that loses something."""
    more: dict[str, object] = {"cuts_that_lost": sum(map(bool, lost)), "most_in_one_cut": max(lost)}
    if seconds:
        more["longest_seconds"] = f"{max(seconds):.2f}"
    return more


@campaign
@pytest.mark.clause("J-21")
@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_power_cuts_on_sqlite(tmp_path: Path, record_figure: Record, synchronous: str) -> None:
    cuts, seed = campaign_size(100), new_chance().seed_used
    orders = {"folder": str(tmp_path), "synchronous": synchronous, "cuts": cuts, "seed": seed}
    command = [sys.executable, "-m", "tests.faults.sqlite_disk", json.dumps(orders)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    subprocess.run(command, cwd=elsewhere, env={**os.environ, "PYTHONPATH": path}, check=True)
    assert list(elsewhere.iterdir()) == []  # SQLite's shared memory lies beside its database
    lost: list[int] = []
    doubled = 0
    for number in range(cuts):
        left = tmp_path / f"cut-{number}"
        told = json.loads((left / "acknowledged.json").read_text())
        with open_store(f"sqlite:///{left / 'jobs.db'}") as store:
            found = {job.id: job.state for job in store.list(limit=100_000)}
        connection = sqlite3.connect(left / "jobs.db")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        effects = [job_id for (job_id,) in connection.execute("SELECT job_id FROM effects")]
        connection.close()
        done = {job_id for job_id, state in found.items() if state is JobState.SUCCEEDED}
        doubled += len(effects) - len(set(effects))
        assert set(effects) <= done  # effect and ack together, or neither
        assert done <= set(effects) | (set(told["acked"]) - set(told["effects"]))
        lost.append(sum(job_id not in found for job_id in told["enqueued"]))
        lost[-1] += sum(job_id not in done for job_id in told["acked"] if job_id in found)
    record_figure(
        f"power cut, SQLite synchronous={synchronous}",
        n=cuts,
        lost=sum(lost),
        doubled=doubled,
        **losses(lost),
        syncs="as SQLite makes them" if told["is_measured"] else "modelled: this Python hides its SQLite",
        seed=seed,
    )
    assert doubled == 0
    assert (sum(lost) == 0) is (synchronous == "FULL")  # the weaker setting must lose some


@campaign
@pytest.mark.timeout(180)
@pytest.mark.parametrize("commit", ["on", "off"])
def test_power_cuts_on_postgresql(record_figure: Record, commit: str) -> None:
    cuts, seed = campaign_size(100), new_chance().seed_used
    chance = random.Random(seed)
    lost, ages, doubled, bytes_lost = [], [], 0, 0
    with PostgresServer(settings={**QUIET, "synchronous_commit": commit}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE TABLE effects (job_id TEXT)")
        open_store(server.dsn).close()
        number = 0
        for _ in range(cuts):
            told: dict[str, float] = {}
            acked: dict[str, float] = {}
            with open_store(server.dsn) as store, psycopg.connect(server.dsn, autocommit=True) as admin:
                backend = store.operations.backend
                store.prune(0.0)
                admin.execute("TRUNCATE effects")
                admin.execute("CHECKPOINT")  # everything before this is safe
                for job in store.list(state=JobState.READY) + store.list(state=JobState.IN_FLIGHT):
                    told[job.id] = 0.0
                until = time.monotonic() + chance.uniform(0.02, 0.3)
                while time.monotonic() < until or not acked:
                    number += 1
                    job_id = store.enqueue("q", {}, id=f"job-{number}").id
                    told[job_id] = time.monotonic()
                    (job,) = store.claim("q", lease_ttl=0.01 if number % 5 == 0 else 3600.0)
                    if number % 5:
                        connection = run(backend.begin())
                        connection.execute("INSERT INTO effects VALUES (%s)", (job.id,))
                        store.ack(job, connection=connection)
                        run(backend.commit(connection))
                        acked[job.id] = time.monotonic()
                position, now = flushed(admin), time.monotonic()
                bytes_lost += cut_postgres(server, position)
            with open_store(server.dsn) as store, psycopg.connect(server.dsn, autocommit=True) as admin:
                found = {job.id: job.state for job in store.list(limit=100_000)}
                effects = [job_id for (job_id,) in admin.execute("SELECT job_id FROM effects")]
            done = {job_id for job_id, state in found.items() if state is JobState.SUCCEEDED}
            doubled += len(effects) - len(set(effects))
            assert set(effects) == done
            gone = [told[job_id] for job_id in told if job_id not in found]
            gone += [at for job_id, at in acked.items() if job_id in found and job_id not in done]
            lost.append(len(gone))
            ages += [now - at for at in gone if at]
    record_figure(
        f"power cut, PostgreSQL synchronous_commit={commit}",
        n=cuts,
        lost=sum(lost),
        doubled=doubled,
        **losses(lost, ages),
        bytes_of_log_lost=bytes_lost,
        seed=seed,
    )
    assert doubled == 0
    assert (sum(lost) == 0) is (commit == "on")  # the weaker setting must lose some


@campaign
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_power_cuts_on_redis(redis_server: RedisServer, record_figure: Record, fsync: Any) -> None:
    cuts, seed = campaign_size(100), new_chance().seed_used
    chance = random.Random(seed)
    lost, ages, bytes_lost = [], [], 0
    settings = {"auto-aof-rewrite-percentage": 0}
    with RedisServer(
        appendonly=True, appendfsync=fsync, config=settings, binary=redis_server.binary
    ) as server:
        power = RedisPower(server)
        for number in range(cuts):
            told: dict[str, float] = {}
            with connect(server.url) as client:
                queue = RedisStreamsQueue(client, QueueConfig(f"cut-{number}", "group", "producer"))
                until = time.monotonic() + chance.uniform(0.02, 0.3 if fsync == "always" else 1.2)
                while time.monotonic() < until or not told:
                    told[queue.enqueue({"n": len(told)})] = time.monotonic()
                    power.answered()
                now = time.monotonic()
                bytes_lost += power.cut(fsync)
            with connect(server.url) as client:
                found = {entry_id.decode() for entry_id, _ in client.xrange(f"cut-{number}")}
            gone = [at for entry_id, at in told.items() if entry_id not in found]
            lost.append(len(gone))
            ages += [now - at for at in gone]
    record_figure(
        f"power cut, {server.flavour} appendfsync {fsync}",
        n=cuts,
        lost=sum(lost),
        **losses(lost, ages),
        bytes_of_log_lost=bytes_lost,
        synced_size="as the kernel counts" if power.is_measured else "modelled: this kernel does not tell",
        seed=seed,
    )
    assert (sum(lost) == 0) is (fsync == "always")  # the weaker setting must lose some
