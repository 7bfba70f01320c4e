"""On separate executor processes, one of which is killed in the middle: nothing changes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.embedded import RedisServer
from conquiet.queue import connect
from tests.acceptance.fleet import Fleet, Worker
from tests.faults.figures import Record
from tests.spark.deaths import START_SECONDS
from tests.spark.source.driver import Work
from tests.spark.source.queries import fill, pending, sink_ids


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.clause("P-10")
def test_a_killed_executor_loses_and_doubles_nothing(tmp_path: Path, record_figure: Record) -> None:
    with RedisServer() as server, connect(server.url) as redis, Fleet(tmp_path) as fleet:
        ids = fill(redis, range(6_000))  # six batches
        driver = fleet.start(Work("driver", server.url, str(tmp_path), master="local-cluster[2,1,1024]"))
        until(driver, lambda: len(list(tmp_path.glob("out/batch=*/_SUCCESS"))) >= 2)
        executors = executors_of(driver)
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        until(driver, lambda: set(executors_of(driver)) - set(executors) != set() or driver.exit_code() == 0)
        assert driver.wait(START_SECONDS) == 0, driver.last_words()
        assert pending(redis) == 0
    wanted, found = Counter(ids), Counter(sink_ids(tmp_path))
    record_figure(
        "Spark: an executor killed -9 under a query that reads a stream",
        n=1,
        lost=(wanted - found).total(),
        doubled=(found - wanted).total(),
        entries=len(ids),
        whole=True,
    )
    assert found == wanted


def until(driver: Worker, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        assert driver.exit_code() in (None, 0), driver.last_words()
        assert time.monotonic() < deadline, driver.last_words()
        time.sleep(0.05)


def executors_of(driver: Worker) -> list[int]:
    """The executors' processes: they are in the driver's process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            if (
                os.getpgid(pid) == driver._process.pid
                and b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
            ):
                found.append(pid)
        except OSError:
            continue  # it has ended meanwhile
    return sorted(found)
