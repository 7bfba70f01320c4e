"""From enqueue to the first line of the job, one job at a time, in milliseconds: ours and peers on the same servers.

Producer and worker are processes of their own. The contestants, in bench/latency_of/, take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import count as numbers
from pathlib import Path

from bench.harness import Bench
from bench.peers import PYTHON
from conquiet.embedded import PostgresServer, RedisServer

BENCH = Bench("latency")
FOLDER = Path(__file__).with_name("latency_of")
JOBS = 300

postgres_server = BENCH.needs(PostgresServer)  # fsync on
redis_server = BENCH.needs(RedisServer)
folder = BENCH.needs(lambda: tempfile.TemporaryDirectory(prefix="conquiet-bench-"))
fresh = numbers()


def database() -> str:
    return postgres_server().create_database(f"latency_{next(fresh)}")


def file() -> str:
    return str(Path(folder()) / f"latency_{next(fresh)}.db")


def our_file() -> str:
    return f"sqlite:///{file()}"


def stream_server() -> str:
    return redis_server().url


def delays(script: str, python: str | Path, target: str) -> list[float]:
    """Return how late each job started, in milliseconds."""
    environment = {**os.environ, "BENCH_TARGET": target}  # not an argument: it may contain a password
    command = [python, FOLDER / f"{script}.py"]
    with subprocess.Popen(
        [*command, "worker", str(JOBS)], env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise SystemExit(f"the worker of {script} did not start")
            subprocess.run([*command, "producer", str(JOBS)], env=environment, check=True, timeout=300)
            return [nanoseconds / 1e6 for nanoseconds in json.loads(worker.stdout.readline())]
        finally:
            worker.kill()


CONTESTANTS: dict[str, tuple[str, str | Path, Callable[[], str]]] = {
    "postgresql": ("conquiet_jobs", sys.executable, database),
    "pgqueuer": ("pgqueuer_postgres", PYTHON, database),
    "procrastinate": ("procrastinate_postgres", PYTHON, database),
    "sqlite": ("conquiet_jobs", sys.executable, our_file),
    "huey": ("huey_sqlite", PYTHON, file),
    "dramatiq": ("dramatiq_redis", PYTHON, stream_server),
}


class Rounds:
    """All contestants in turn, once per round, however the figures are asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def percentile(self, contestant: str, percent: int) -> float:
        key = f"{contestant} {percent}"
        turn = self._asked[key] = self._asked.get(key, -1) + 1
        return statistics.quantiles(self._round(turn)[contestant], n=100)[percent - 1]

    @cache  # noqa: B019 - there is one, as long as the process lives
    def _round(self, number: int) -> dict[str, list[float]]:
        return {
            name: delays(script, python, target()) for name, (script, python, target) in CONTESTANTS.items()
        }


ROUNDS = Rounds()
for _name in CONTESTANTS:
    for _percent in (50, 99):
        BENCH.figure(
            f"{_name}_p{_percent}_ms",
            unit="ms from enqueue to start",
            measure=lambda name=_name, percent=_percent: ROUNDS.percentile(name, percent),
        )
