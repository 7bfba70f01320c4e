"""Strict mode: what `process` may not do, while everything else still may."""

from __future__ import annotations

import asyncio
import contextvars
import glob
import importlib
import linecache
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from conquiet.task import Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.mixins.policies import ConsumerPolicy, RetryPolicy
from tests.unit.task.both import Engine, on_both, policy, transactions

pytestmark = pytest.mark.clause("E-33")

LIMITS = pytest.mark.parametrize("timeout", [None, 30.0], ids=["untimed", "timed"])


def strict(timeout: float | None = None, attempts: int = 1, **more: Any) -> ConsumerPolicy:
    return policy(process=RetryPolicy(attempts, timeout), strict_io=True, **more)


def read() -> str:
    return Path("present").read_text()


def connect_unix() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("nobody.sock")


def connect() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


def send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", 9))


def listen() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "reading a file": (read, "open"),
    "writing a file": (lambda: Path("new").write_text("x"), "open"),
    "open": (lambda: open("present"), "open"),  # noqa: SIM115
    "os.open": (lambda: os.open("new", os.O_CREAT), "open"),
    "removing": (lambda: os.remove("present"), "os.remove"),
    "renaming": (lambda: os.rename("present", "new"), "os.rename"),
    "mkdir": (lambda: os.mkdir("new"), "os.mkdir"),
    "listing": (lambda: os.listdir("."), "os.listdir"),
    "globbing": (lambda: glob.glob("*"), "glob.glob"),
    "copying": (lambda: shutil.copyfile("present", "new"), "shutil.copyfile"),
    "sqlite": (lambda: sqlite3.connect("new"), "sqlite3.connect"),
    "connecting": (connect, "socket.connect"),
    "connecting to a path": (connect_unix, "socket.connect"),
    "listening": (listen, "socket.bind"),
    "sending": (send_datagram, "socket.sendto"),
    "resolving": (lambda: socket.getaddrinfo("localhost", 80), "socket.getaddrinfo"),
    "http": (lambda: urllib.request.urlopen("http://127.0.0.1:9"), "urllib.Request"),
    "subprocess": (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "subprocess.Popen"),
    "shell": (lambda: os.system("true"), "os.system"),
    "fork": (lambda: os.fork() or os._exit(0), "os.fork"),
    "spawn": (lambda: os.posix_spawn("/bin/true", ["true"], {}), "os.posix_spawn"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "present").write_text("as it was")
    return tmp_path


@on_both
@LIMITS
@pytest.mark.parametrize("what", CALLS)
def test_a_process_that_tries_fails_as_system_and_is_told_which_call_it_was(
    variant: str, timeout: float | None, what: str, folder: Path
) -> None:
    call, name = CALLS[what]
    engine = Engine(variant)
    outcome = engine.live(engine.task(lambda tx: call()), Transaction("a"), strict(timeout))
    assert outcome.category is ExceptionCategory.SYSTEM
    assert isinstance(outcome.exception, TransactionException)
    assert f"process called {name!r}" in str(outcome.exception)
    assert outcome.exception.transaction_id == "a"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"present": "as it was"}


@on_both
@LIMITS
def test_it_is_retried_and_goes_to_the_exception_handler_as_any_system_error(
    variant: str, timeout: float | None
) -> None:
    engine = Engine(variant)
    handled: list[Any] = []
    task = engine.task(lambda tx: read(), exception=lambda tx, error: handled.append(error))
    outcome = engine.live(task, Transaction("a"), strict(timeout, attempts=3))
    assert outcome.attempts == 3
    assert handled == [outcome.exception]


@on_both
@LIMITS
def test_the_handlers_the_fetch_and_the_settling_are_free(
    variant: str, timeout: float | None, folder: Path
) -> None:
    engine = Engine(variant)

    def write(name: str) -> Any:
        def step(*args: Any, **extra: Any) -> None:
            (folder / name).write_text(name)

        return step

    class Source:
        left = 2

        def fetch(self, size: int) -> list[Transaction]:
            write("fetched")()
            self.left -= 1
            return [Transaction(str(self.left))] if self.left >= 0 else []

        def settle(self, outcomes: Any) -> None:
            write("settled")()

    def process(transaction: Transaction) -> None:
        if transaction.id == "0":
            raise ValueError("to the exception handler")

    report = engine.consume(
        engine.task(process, write("succeeded"), write("failed")),
        Source(),
        strict(timeout),
        on_outcome=write("outcome"),
    )
    assert (report.succeeded, report.failed) == (1, 1)
    assert {path.name for path in folder.iterdir()} == {
        "outcome",
        "present",
        "fetched",
        "settled",
        "succeeded",
        "failed",
    }


@on_both
@LIMITS
def test_other_threads_are_free_while_a_strict_process_runs(variant: str, timeout: float | None) -> None:
    begun, done, found = threading.Event(), threading.Event(), []

    def elsewhere() -> None:
        begun.wait(30)
        found.append(read())
        done.set()

    def process(transaction: Transaction) -> Iterator[Any]:
        begun.set()
        yield done
        with pytest.raises(TransactionException):
            read()
        found.append("refused here")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    engine = Engine(variant)
    assert engine.live(engine.task(process), Transaction("a"), strict(timeout)).status == "succeeded"
    thread.join()
    assert found == ["as it was", "refused here"]


def test_other_tasks_of_the_same_event_loop_are_free_while_a_strict_process_waits() -> None:
    engine = Engine("asyncio")

    async def main() -> None:
        begun, done = asyncio.Event(), asyncio.Event()

        async def process(self: Any, transaction: Transaction) -> None:
            begun.set()
            await done.wait()
            with pytest.raises(TransactionException):
                read()

        task = engine.task()
        type(task).process_transaction = process
        life = asyncio.create_task(task.start_processing(Transaction("a"), strict()))
        await begun.wait()
        assert read() == "as it was"
        outcome = await engine.task(lambda tx: read()).start_processing(Transaction("b"))
        assert outcome.result == "as it was"
        done.set()
        assert (await life).status == "succeeded"

    asyncio.run(main())


@on_both
def test_strict_and_lenient_loops_run_beside_each_other(variant: str) -> None:
    engine = Engine(variant)

    def process(transaction: Transaction) -> Generator[Any, Any, Any]:
        yield 0.001
        return read()

    reports: dict[bool, Any] = {}

    def consume(is_strict: bool) -> None:
        reports[is_strict] = engine.consume(
            engine.task(process), transactions(50), policy(concurrency=8, batch=10, strict_io=is_strict)
        )

    threads = [threading.Thread(target=consume, args=(flag,)) for flag in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (reports[True].failed, reports[False].succeeded) == (50, 50)


@on_both
@LIMITS
def test_it_is_off_by_default_and_leaves_nothing_behind(variant: str, timeout: float | None) -> None:
    engine = Engine(variant)
    task = engine.task(lambda tx: read())
    lenient = policy(process=RetryPolicy(1, timeout))
    for chosen, status in [(lenient, "succeeded"), (strict(timeout), "failed"), (lenient, "succeeded")]:
        assert engine.live(task, Transaction("a"), chosen).status == status
        assert read() == "as it was"


@pytest.mark.parametrize("how", ["task", "to_thread"])
def test_what_a_process_starts_in_its_own_context_is_seen_too(how: str) -> None:
    async def process(self: Any, transaction: Transaction) -> str:
        if how == "task":
            return await asyncio.create_task(read_soon())
        return await asyncio.to_thread(read)

    async def read_soon() -> str:
        return read()

    engine = Engine("asyncio")
    task = engine.task()
    type(task).process_transaction = process
    outcome = engine.live(task, Transaction("a"), strict())
    assert "process called 'open'" in str(outcome.exception)


@pytest.mark.parametrize("how", ["connection", "subprocess"])
def test_asyncio_s_own_ways_out_are_refused(how: str) -> None:
    async def process(self: Any, transaction: Transaction) -> None:
        if how == "connection":
            await asyncio.open_connection("127.0.0.1", 9)
        else:
            await asyncio.create_subprocess_exec(sys.executable, "-c", "")

    engine = Engine("asyncio")
    task = engine.task()
    type(task).process_transaction = process
    outcome = engine.live(task, Transaction("a"), strict())
    assert outcome.category is ExceptionCategory.SYSTEM
    assert "strict mode: process called" in str(outcome.exception)


@on_both
def test_a_late_import_and_a_traceback_are_not_the_tasks_doing(variant: str, folder: Path) -> None:
    (folder / "imported_late.py").write_text("VALUE = 7\n")

    def process(transaction: Transaction) -> tuple[int, str]:
        linecache.clearcache()
        try:
            raise ValueError("to be shown")
        except ValueError:
            shown = traceback.format_exc()
        return importlib.import_module("imported_late").VALUE, shown

    engine = Engine(variant)
    sys.path.insert(0, str(folder))
    try:
        outcome = engine.live(engine.task(process), Transaction("a"), strict())
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("imported_late", None)
    assert outcome.exception is None
    assert outcome.result[0] == 7
    assert 'raise ValueError("to be shown")' in outcome.result[1]


@on_both
def test_an_import_does_not_open_a_way_round(variant: str, folder: Path) -> None:
    (folder / "reads_when_imported.py").write_text("TEXT = open('present').read()\n")
    engine = Engine(variant)
    sys.path.insert(0, str(folder))
    try:
        task = engine.task(lambda tx: importlib.import_module("reads_when_imported").TEXT)
        outcome = engine.live(task, Transaction("a"), strict())
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("reads_when_imported", None)
    assert "process called 'open'" in str(outcome.exception)


@on_both
def test_what_it_cannot_see(variant: str) -> None:
    """As docs/engine.md says: a connection opened before, and a thread started without the context."""
    ours, theirs = socket.socketpair()

    def process(transaction: Transaction) -> list[str]:
        ours.sendall(b"sent")
        found: list[str] = []
        thread = threading.Thread(target=contextvars.Context().run, args=(lambda: found.append(read()),))
        thread.start()
        thread.join()
        return found

    engine = Engine(variant)
    with ours, theirs:
        outcome = engine.live(engine.task(process), Transaction("a"), strict())
        assert theirs.recv(4) == b"sent"
    assert outcome.result == ["as it was"]
