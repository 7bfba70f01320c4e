"""What every contestant does: jobs arrive one at a time, each with the moment of its enqueue, and say how late they start.

    python NAME.py worker COUNT     says "ready", then "done" and the delays in nanoseconds, as one line of JSON
    python NAME.py producer COUNT   enqueues, at random moments

Run by bench/latency.py. CLOCK_MONOTONIC is the same in all processes of a machine.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable

TARGET = os.environ["BENCH_TARGET"]
FIRST = 10  # jobs that do not count: connections are opened for them
COUNT = int(sys.argv[2]) + FIRST
PLACES = 8  # how many jobs run at a time, for all
_delays: list[int] = []
_done = threading.Event()


def started(sent: int) -> None:
    """The first line of every job."""
    _delays.append(time.monotonic_ns() - sent)
    if len(_delays) == COUNT:
        _done.set()


def role(name: str) -> bool:
    return sys.argv[1] == name


def work() -> None:
    """Call this when the worker runs: it reports and ends the process, whatever else runs in it."""
    print("ready", flush=True)
    _done.wait()
    print(json.dumps(_delays[FIRST:]), flush=True)
    os._exit(0)


def work_beside() -> None:
    """Like `work`, for a worker that needs the main thread."""
    threading.Thread(target=work, daemon=True).start()


def produce(send: Callable[[int], object]) -> None:
    chance = random.Random(17)  # the same moments for all
    for _ in range(COUNT):
        time.sleep(chance.uniform(0.01, 0.05))
        send(time.monotonic_ns())
