"""The sum over processes: counts of those that have ended stay, their gauges go, and strangers do not count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conquiet.observe import DIRECTORY, SummedMetrics

MEMBER = """
import os, sys
from conquiet.observe import join_sum
if sys.argv[1] != "0":
    join_sum(int(sys.argv[1]))
from conquiet.observe.failsafe import read_at_scrape
from prometheus_client import Counter, Gauge, Histogram
Counter("done_total", "", ("task",)).labels("a").inc(2)
Histogram("took", "", buckets=(1, 10)).observe(5)
read_at_scrape(Gauge("held", "", multiprocess_mode="livesum"), lambda: 3)
if os.fork() == 0:  # a fork has its own files, or none of the numbers could be trusted
    Counter("forked_total", "").inc()
    os._exit(0)
os.wait()
os.kill(os.getpid(), 9)
"""


def member(directory: Path, number: int) -> None:
    environment = {**os.environ, DIRECTORY: str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", MEMBER, str(number)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (-9, "")


def lines(summed: SummedMetrics) -> set[str]:
    page = summed.exposition()
    assert page is not None
    return {line for line in page[0].decode().splitlines() if not line.startswith("#")}


def test_counts_are_added_and_survive_a_kill_and_a_successor(tmp_path: Path) -> None:
    summed = SummedMetrics(str(tmp_path), 2)
    assert lines(summed) == set()
    for number in (1, 2, 2):
        member(tmp_path, number)
    assert {
        'done_total{task="a"} 6.0',
        "took_count 3.0",
        "took_sum 15.0",
        'took_bucket{le="10.0"} 3.0',
    } <= lines(summed)


def test_the_gauges_of_a_process_that_ended_are_gone(tmp_path: Path) -> None:
    summed = SummedMetrics(str(tmp_path), 2)
    member(tmp_path, 1)
    member(tmp_path, 2)
    assert any(line.startswith("held ") for line in lines(summed))
    summed.ended(1)
    assert any(line.startswith("held ") for line in lines(summed))
    summed.ended(2)
    assert not any(line.startswith("held ") for line in lines(summed))
    assert 'done_total{task="a"} 4.0' in lines(summed)


def test_other_processes_do_not_count_and_leave_nothing(tmp_path: Path) -> None:
    summed = SummedMetrics(str(tmp_path), 1)
    member(tmp_path, 1)
    member(tmp_path, 0)
    assert len(list(tmp_path.iterdir())) > 3
    assert 'done_total{task="a"} 2.0' in lines(summed)
    assert not any("forked" in line for line in lines(summed))
    assert {path.stem.rpartition("_")[2] for path in tmp_path.iterdir()} == {"worker1"}
