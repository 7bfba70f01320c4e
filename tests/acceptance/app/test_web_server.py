"""A worker inside a web server, a real uvicorn: its signals belong to the server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from urllib.request import urlopen

import pytest

from conquiet.jobs import JobState, open_store

SERVICE = """
import asyncio, logging, sys
from contextlib import asynccontextmanager
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from conquiet import Conquiet

app = Conquiet("sqlite:///jobs.db")
told = asyncio.Event()


@app.task
async def ship() -> None: ...


async def order(request):
    # The last request, still open when the server is told to end: it needs the worker once more.
    print("asked", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    job = await ship.enqueue_async()
    store = await app.async_store()
    while (await store.get(job.id)).state != "Succeeded":
        await asyncio.sleep(0.01)
    return PlainTextResponse(job.id)


@asynccontextmanager
async def lifespan(service):
    worker = app.worker(**SETTINGS)
    running = asyncio.create_task(worker.run_async())
    yield
    print("worker runs" if not running.done() else "worker ended", flush=True)
    worker.stop()
    await running
    await app.close_async()
    print("closed", flush=True)


service = Starlette(routes=[Route("/", order)], lifespan=lifespan)
logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(sys.stdout))
uvicorn.run(service, port=0, log_config=None, log_level="info")
"""


class Server:
    def __init__(self, folder: Path, settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVICE.replace("**SETTINGS", settings)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def until(self, what: str) -> str:
        """Return the next line of its output that has `what`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if what in line:
                return line
        raise AssertionError(f"it ended before it said {what!r}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_store(f"sqlite:///{tmp_path}/jobs.db").close()
    return tmp_path


@pytest.fixture
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    started = Server(folder, getattr(request, "param", ""))
    with started.process:
        try:
            yield started
        finally:
            started.process.kill()


def test_the_server_ends_when_it_has_answered_and_the_worker_works_until_then(
    server: Server, folder: Path
) -> None:
    answers: Queue[bytes] = Queue()
    address = server.until("running on").split()[3]
    client = threading.Thread(target=lambda: answers.put(urlopen(address, timeout=60).read()))
    client.start()
    server.until("asked")
    server.process.send_signal(signal.SIGTERM)
    server.until("Waiting for connections to close")
    server.go_on()
    job_id = answers.get(timeout=30).decode()
    client.join()
    server.until("worker runs")
    server.until("closed")
    assert server.process.wait(30) == -signal.SIGTERM  # uvicorn raises the signal again when it has ended
    with open_store(f"sqlite:///{folder}/jobs.db") as store:
        assert store.get(job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("server", ["handle_signals=True"], indirect=True)
def test_a_worker_that_handles_signals_leaves_them_to_the_server_too(server: Server) -> None:
    server.until("running on")
    server.process.send_signal(signal.SIGTERM)
    server.until("Shutting down")
    server.until("closed")
    assert server.process.wait(30) == -signal.SIGTERM
