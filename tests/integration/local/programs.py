"""Programs that need their own process, because they import or register something once per process."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run_program(*arguments: str) -> list[str]:
    """Run one of the programs below to its end; returns the lines it printed."""
    command = [sys.executable, "-m", "tests.integration.local.programs", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def unmeasured(obstacle: str) -> None:
    """The queue, a worker and a breaker without a usable prometheus_client."""
    if obstacle == "not installed":
        sys.modules["prometheus_client"] = None  # importing it raises ImportError
    else:
        import prometheus_client

        prometheus_client.Gauge("conquiet_job_failures_total", "somebody else's")
    from conquiet.local import CircuitBreakerRegistry, PriorityDelayQueue, Worker

    queue = PriorityDelayQueue()
    done: list[int] = []
    queue.enqueue(0)
    queue.enqueue(1)
    queue.shutdown()
    worker = Worker(queue, lambda job: done.append(1 // job))
    worker.start()
    worker.join(10)
    allowed = CircuitBreakerRegistry().for_platform("any").allow()
    print(f"done {done}, allowed {allowed}, latency counted {sum(queue._latency.counts)}")


def together() -> None:
    """Many threads create the first queue, worker and breaker of the process."""
    said: list[str] = []

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("conquiet").addHandler(Said())
    from conquiet.local import CircuitBreakerRegistry, PriorityDelayQueue, Worker

    sys.setswitchinterval(1e-6)
    registry, gate = CircuitBreakerRegistry(), threading.Barrier(16)

    def begin(number: int) -> None:
        gate.wait(10)
        Worker(PriorityDelayQueue(), print)
        registry.for_platform(f"platform-{number % 3}")

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*(said or ["no complaint"]), sep="\n")


def imported() -> None:
    """The modules that importing the room loads."""
    import conquiet.local  # noqa: F401

    heavy = {
        "redis",
        "psycopg",
        "sqlalchemy",
        "pyspark",
        "sqlite3",
        "starlette",
        "opentelemetry",
        "asyncio.events",
    }
    print(*sorted(heavy & set(sys.modules)))


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "unmeasured": unmeasured,
        "together": together,
        "imported": imported,
    }
    programs[sys.argv[1]](*sys.argv[2:])
