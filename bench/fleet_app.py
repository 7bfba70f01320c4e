"""The app whose workers bench/fleet.py and bench/bloat.py start. As a program: `python -m bench.fleet_app 20` waits with 20 workers."""

from __future__ import annotations

import os
import sys
import threading
import time

from conquiet import Conquiet
from conquiet.jobs import JobWorker

app = Conquiet(os.environ.get("BENCH_TARGET", "memory://"))


@app.task
def nothing() -> None:
    pass


@app.task
def compute() -> None:
    """One millisecond of CPU time."""
    begin = time.thread_time()
    while time.thread_time() < begin + 0.001:
        pass


def wait_idly(workers: int) -> None:
    """Run so many workers that never get a job, each with a queue of its own, until standard input ends."""
    waiting = [
        JobWorker(app.store, lambda job: None, queues=f"idle-{os.getpid()}-{number}")
        for number in range(workers)
    ]
    threads = [threading.Thread(target=worker.run) for worker in waiting]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    for worker in waiting:
        worker.stop()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    wait_idly(int(sys.argv[1]))
