"""Many workers on one PostgreSQL server: more processes for work that computes, and what workers cost while there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from itertools import count as numbers

import psutil

from bench.harness import Bench, timed
from conquiet.embedded import PostgresServer
from conquiet.jobs import NewJob, open_store

BENCH = Bench("fleet")
IDLE_PROCESSES, IDLE_WORKERS = 10, 20
IDLE_SECONDS = 20.0

server = BENCH.needs(
    lambda: PostgresServer(settings={"max_connections": 1_000})
)  # an idle worker listens with one
fresh = numbers()


def target() -> str:
    return server().create_database(f"fleet_{next(fresh)}")


def environment(dsn: str) -> dict[str, str]:
    return {**os.environ, "BENCH_TARGET": dsn}


def fill(dsn: str, task: str, count: int) -> None:
    with open_store(dsn) as store:
        for begin in range(0, count, 5_000):
            new = NewJob({"task": task, "arguments": {}})
            store.enqueue_many("default", [new] * min(5_000, count - begin))


def workers(dsn: str, processes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "conquiet", "worker", "bench.fleet_app:app", "--until-idle"]
    if processes > 1:
        command += ["--processes", str(processes)]
    return subprocess.Popen(
        command, env=environment(dsn), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )


def computed(processes: int, count: int) -> float:
    """Seconds from the first job to the last: the start of the processes does not count."""
    dsn = target()
    fill(dsn, "compute", count)
    with open_store(dsn) as store, workers(dsn, processes) as running:
        while store.stats("default")["default"].succeeded == 0:
            time.sleep(0.01)

        def drained() -> None:
            while store.stats("default")["default"].succeeded < count:
                time.sleep(0.01)

        seconds = timed(drained)
        running.wait(60)
    return seconds


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def idle_share() -> float:
    """The share of a core that all workers and the server use together."""
    dsn = target()
    open_store(dsn).close()
    with ExitStack() as stack:
        programs = []
        for _ in range(IDLE_PROCESSES):
            command = [sys.executable, "-m", "bench.fleet_app", str(IDLE_WORKERS)]
            program = stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment(dsn),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            programs.append(program)
            assert program.stdout is not None
            assert program.stdin is not None
            stack.callback(program.stdin.close)
            assert program.stdout.readline() == "ready\n"
        time.sleep(3.0)  # until all of them wait
        observed = [psutil.Process(program.pid) for program in programs]
        postmaster = psutil.Process(server().pid)
        observed += [postmaster, *postmaster.children(recursive=True)]
        before = cpu_seconds(observed)
        time.sleep(IDLE_SECONDS)
        return (cpu_seconds(observed) - before) / IDLE_SECONDS


BENCH.compare("processes", unit="jobs", count=4_000, ours=partial(computed, 2), one=partial(computed, 1))
BENCH.figure("idle_core_share", unit="of a core", measure=idle_share)
