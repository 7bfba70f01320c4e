"""Handlers at the top level of a module, as child processes need them, and their counterparts for asyncio.

They record what they do in the file that the job names: a line each, with the process and the lease's version.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from conquiet.jobs import Job

Handler = Any


def note(job: Job, word: str) -> None:
    assert job.lease is not None
    with open(job.payload["notes"], "a") as file:
        file.write(f"{word} {os.getpid()} {job.lease.version}\n")


def notes(path: Path) -> list[tuple[str, int, int]]:
    """The recorded lines: word, process, version."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(word, int(pid), int(version)) for word, pid, version in map(str.split, lines)]


def words(path: Path) -> list[str]:
    return [word for word, _, _ in notes(path)]


def linger(job: Job) -> None:
    """Take `seconds`."""
    note(job, "begin")
    time.sleep(job.payload["seconds"])
    note(job, "end")


async def linger_async(job: Job) -> None:
    note(job, "begin")
    try:
        await asyncio.sleep(job.payload["seconds"])
    except asyncio.CancelledError:
        note(job, "cancelled")
        raise
    note(job, "end")


def lazily(job: Job) -> Any:
    return (note(job, "never run") for _ in "x")


TEXTS = ("plain", "a\0b", "half a pair: \ud83d", "quote ' \" \\ % {} %s", "", "long " * 10_000)


def fail(job: Job) -> None:
    """Raise with one of those texts: not all of them could be in a payload."""
    raise ValueError(TEXTS[job.payload["text"]])


async def fail_async(job: Job) -> None:
    fail(job)


def connect(job: Job) -> None:
    """Fail with a password in the text, in a note and in the cause; a local variable has one, too."""
    key = "hunter2-local"
    try:
        raise ConnectionError(f"no answer from postgresql://app:hunter2@db/{job.queue}")
    except ConnectionError as error:
        error.add_note("tried with password=hunter2")
        raise LookupError(f"no customer {job.payload['customer']}" + key[:0]) from error


async def connect_async(job: Job) -> None:
    await asyncio.sleep(0)
    connect(job)


def tell(job: Job) -> None:
    """Fail once; then write down the job as the handler got it."""
    if job.retries == 0:
        raise ValueError("once")
    Path(job.payload["notes"]).write_text(json.dumps(job.plain()))


LINGER: dict[str, Handler] = {"thread": linger, "process": linger, "async": linger_async}
FAIL: dict[str, Handler] = {"thread": fail, "process": fail, "async": fail_async}
CONNECT: dict[str, Handler] = {"thread": connect, "process": connect, "async": connect_async}
