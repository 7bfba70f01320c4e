"""Print which files of conquiet one job crosses, from `enqueue` to its ack: `python walked_files.py DSN`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import conquiet
from conquiet import Conquiet
from conquiet.jobs import JobState

FOLDER = str(Path(conquiet.__file__).parent) + "/"
crossed: set[str] = set()
watching = threading.Event()
ran = threading.Semaphore(0)


def watch(frame: FrameType, event: str, argument: object) -> None:
    if event == "call" and watching.is_set() and frame.f_code.co_filename.startswith(FOLDER):
        crossed.add(frame.f_code.co_filename.removeprefix(FOLDER))


def wait_for(app: Conquiet, job_id: str) -> None:
    assert ran.acquire(timeout=60)
    while (job := app.store.get(job_id)) is None or job.state is not JobState.SUCCEEDED:
        pass


def main() -> None:
    threading.setprofile(watch)
    app = Conquiet(sys.argv[1])

    @app.task
    def greet(name: str) -> None:
        ran.release()

    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(app, greet.enqueue("somebody").id)  # the first job also runs what happens only once
    watching.set()
    sys.setprofile(watch)
    job = greet.enqueue("Ada")
    sys.setprofile(None)
    wait_for(app, job.id)
    watching.clear()
    worker.stop()
    thread.join()
    print("\n".join(sorted(crossed)))


main()
