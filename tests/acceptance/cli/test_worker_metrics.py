"""worker --metrics-port: one port, whose numbers are those of all processes, also of those that are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conquiet.embedded.ports import free_port
from conquiet.jobs import NewJob, open_store
from tests.acceptance.cli.command import Shell

TASKS = """
import os, time
from pathlib import Path
from prometheus_client import Counter
from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

app = Conquiet("sqlite:///jobs.db", retry=RetrySchedule(base_seconds=0.01, max_seconds=0.01))
SOLD = Counter("shop_sold_total", "a metric of the app's own")

@app.task
def sell(number):
    SOLD.inc()
    if number % 10 == 0:
        raise ValueError("sold out")

@app.task
def hold(name):
    Path(f"{name} by {os.getpid()}").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(TASKS)
    return shell


def enqueue(shop: Shell, task: str, *arguments: Mapping[str, object]) -> None:
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        new = [NewJob({"task": task, "arguments": found}, max_retries=1) for found in arguments]
        store.enqueue_many("default", new)


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Scraped:
    """What the port of a worker serves."""

    def __init__(self) -> None:
        self.port = free_port()

    def page(self) -> str:
        with suppress(URLError), urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as page:
            return page.read().decode()
        return ""  # it has not started yet

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def finished(self, outcome: str) -> float:
        return self("conquiet_jobs_finished_total", outcome=outcome)


@contextmanager
def working(shop: Shell, *options: str) -> Iterator[tuple[subprocess.Popen[str], Scraped]]:
    """A worker that is killed if the test fails. Its log goes to a file: nobody empties a pipe."""
    scraped = Scraped()
    command = shop.command("worker", "shop:app", "--metrics-port", str(scraped.port), "--json", *options)
    with (shop.folder / "log").open("w") as log:
        worker = subprocess.Popen(
            command, cwd=shop.folder, env=shop.environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield worker, scraped
    finally:
        worker.kill()
        worker.communicate(timeout=60)


def stopped(worker: subprocess.Popen[str]) -> dict[str, int]:
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    return json.loads(out)


@pytest.mark.parametrize("processes", [1, 3])
def test_a_scrape_equals_what_the_workers_counted(shop: Shell, processes: int) -> None:
    enqueue(shop, "sell", *({"number": number} for number in range(1000)))
    with working(shop, "--processes", str(processes)) as (worker, scraped):
        wait_until(lambda: scraped.finished("succeeded") == 900 and scraped.finished("failed") == 100)
        found = {name: scraped.finished(name) for name in ("succeeded", "retried", "failed", "lost")}
        assert found == {"succeeded": 900, "retried": 100, "failed": 100, "lost": 0}
        released = scraped.finished("given_back")
        for histogram in ("run", "wait"):
            assert scraped(f"conquiet_jobs_{histogram}_seconds_count", task="sell") == 1100
            assert scraped(f"conquiet_jobs_{histogram}_seconds_bucket", task="sell", le="+Inf") == 1100
        assert scraped("conquiet_jobs_retries_total") == 100
        assert scraped("shop_sold_total") == 1100
        wait_until(lambda: scraped("conquiet_jobs_running") == 0)
        counts = stopped(worker)
    assert {"succeeded": 900, "failed": 200, "lost": 0, "released": released}.items() <= counts.items()
    assert counts["claimed"] == 1100 + released


def test_a_killed_process_leaves_its_counts_and_takes_its_gauges(shop: Shell) -> None:
    enqueue(shop, "sell", *({"number": number} for number in range(1, 6)))
    with working(shop, "--processes", "2", "--concurrency", "1") as (worker, scraped):
        wait_until(lambda: scraped.finished("succeeded") == 5)
        enqueue(shop, "hold", {"name": "a"}, {"name": "b"})
        wait_until(lambda: scraped("conquiet_jobs_running", task="hold") == 2)
        for path in shop.folder.glob("? by *"):
            os.kill(int(path.name.rpartition(" ")[2]), signal.SIGKILL)
        (shop.folder / "go on").touch()
        assert scraped.finished("succeeded") >= 5
        # The new ones go on counting where the old ones stopped. The jobs come back when their leases have lapsed.
        wait_until(lambda: scraped.finished("succeeded") == 7)
        assert (
            scraped("conquiet_jobs_redelivered_total", task="hold") >= 2
        )  # suspects may be given back first
        wait_until(lambda: scraped("conquiet_jobs_running") == 0)
        assert stopped(worker)["succeeded"] == 2


def test_the_port_of_several_processes_must_be_free(shop: Shell) -> None:
    with working(shop, "--processes", "2") as (worker, scraped):
        wait_until(scraped.page)
        run = shop("worker", "shop:app", "--processes", "2", "--metrics-port", str(scraped.port))
        assert run.code == 2
        assert "choose another --metrics-port" in run.err
        stopped(worker)
