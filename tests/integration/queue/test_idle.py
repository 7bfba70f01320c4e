"""An idle consumer waits in Redis: it does not spin."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording


@pytest.mark.clause("C-10", "C-15", "C-20")
@pytest.mark.parametrize("how", ["run", "iter_messages"])
def test_an_idle_consumer_makes_one_call_per_block_ms_and_hardly_works(
    queues: Any, monitor: Monitor, beside: ThreadPoolExecutor, how: str
) -> None:
    rounds, block_ms = 4, 200
    consumer = queues.consumer(block_ms=block_ms)
    recording = Recording()
    consume = {
        "run": lambda: consumer.run(handler=recording.handle, db_factory=recording),
        "iter_messages": lambda: list(consumer.iter_messages()),
    }[how]
    assert consumer.next(10) is None  # connected and warmed up
    monitor.commands()
    consuming = beside.submit(consume)
    monitor.wait_for("XREADGROUP")
    began, worked = time.monotonic(), time.process_time()
    for _ in range(rounds):
        assert monitor.wait_for("XREADGROUP")[-1] == ">"
    lasted, worked = time.monotonic() - began, time.process_time() - worked
    consumer.stop()
    consuming.result(timeout=10)
    assert lasted >= rounds * block_ms / 1000 * 0.95  # no more than one call per block_ms
    assert worked < 0.01 * lasted  # under 1 % of a core, including this test's own work
    assert monitor.commands() == []
