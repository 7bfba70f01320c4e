"""An app in a module, for child processes to import."""

from __future__ import annotations

import os
import time
from pathlib import Path

from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

app = Conquiet("memory://")  # the parent has another one: a child only runs functions


@app.task
def write(path: str) -> None:
    Path(path).write_text(str(os.getpid()))


@app.task
async def write_async(path: str) -> None:
    write(path)


@app.task(timeout=2, retry=RetrySchedule(max_retries=0))
def hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)
