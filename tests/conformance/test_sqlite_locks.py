"""The one write lock of a SQLite file: who holds it, from when on, and what a fork does to it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.jobs import JobState, JobWorker, StoreClosedError, open_async_store, open_store

QUEUE = "orders"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def in_child(work: Callable[[], object]) -> int:
    """Run it in a fork of this process. Return 0, 2 if the store refuses, or 1."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except StoreClosedError:
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.clause("J-29")
@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_first_job_of_a_new_file_is_enqueued_in_the_callers_transaction(
    path: Path, journal: str, how: str
) -> None:
    app = Conquiet(f"sqlite:///{path}")

    @app.task
    def send(order: int) -> None: ...

    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {journal}")
        database.execute("CREATE TABLE orders (n INTEGER)")
        database.execute("INSERT INTO orders VALUES (1)")
        assert database.in_transaction
        began = time.monotonic()
        send.enqueue(1, connection=database)
        send.enqueue(2, connection=database)
        assert time.monotonic() - began < 5  # it would wait for ten seconds
        getattr(database, how)()
    send.enqueue(3)  # on the store's own connection, which creates what was rolled back
    with app.stores.current() as store:
        orders = [send.arguments_of(job)["order"] for job in store.list()]
        assert orders == ([1, 2, 3] if how == "commit" else [3])


def test_so_is_that_of_asyncio(path: Path) -> None:
    app = Conquiet(f"sqlite:///{path}")

    @app.task
    async def send(order: int) -> None: ...

    async def main() -> None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE orders (n INTEGER)")
            database.execute("INSERT INTO orders VALUES (1)")
            began = time.monotonic()
            await send.enqueue_async(1, connection=database)
            assert time.monotonic() - began < 5
            database.commit()
        await send.enqueue_async(2)
        await app.close_async()

    asyncio.run(main())
    with open_store(f"sqlite:///{path}", migrate="never") as store:
        assert len(store.list()) == 2


def test_a_store_opened_in_a_locked_file_is_checked_later(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        store.enqueue(QUEUE, {})
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE conquiet_schema SET version = 99, oldest = 99")
        database.commit()
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("BEGIN EXCLUSIVE")
        store = open_store(f"sqlite:///{path}")
        database.rollback()
        with pytest.raises(Exception, match="has schema version 99"):
            store.enqueue(QUEUE, {})
        store.close()


@pytest.mark.clause("J-30")
def test_a_store_opened_in_a_locked_file_waits_for_the_lock_afterwards(path: Path) -> None:
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = wal")
        other.execute("BEGIN IMMEDIATE")
        with open_store(f"sqlite:///{path}") as store:
            release = threading.Timer(0.5, other.rollback)
            release.start()
            assert store.enqueue(QUEUE, {}).state is JobState.READY
            release.join()


def test_handlers_that_only_read_hold_no_lock(path: Path) -> None:
    """Eight slow handlers have their connections; others go on writing meanwhile."""
    inside, go_on = threading.Barrier(9), threading.Event()

    def effect(job: Any, context: Any) -> None:
        connection = context.connection
        connection.execute("SELECT count(*) FROM effects").fetchone()
        inside.wait(30)
        go_on.wait(30)
        connection.execute("INSERT INTO effects VALUES (?)", (job.payload["n"],))

    with open_store(f"sqlite:///{path}") as store, closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE effects (n INTEGER UNIQUE)")
        store.enqueue_many(QUEUE, [{"n": n} for n in range(8)])
        worker = JobWorker(store, effect, queues=QUEUE, concurrency=8)
        thread = threading.Thread(target=worker.run_until_idle)
        thread.start()
        inside.wait(30)
        began = time.monotonic()
        store.enqueue("others", {})
        assert len(store.claim("others")) == 1
        assert time.monotonic() - began < 5
        go_on.set()
        thread.join(60)
        assert store.stats(QUEUE)[QUEUE].succeeded == 8
        assert database.execute("SELECT count(*) FROM effects").fetchone() == (8,)


WRITES = {
    "insert": "INSERT INTO effects VALUES (1)",
    "with": "WITH one (n) AS (VALUES (1)) INSERT INTO effects SELECT n FROM one",
    "a comment": "/* first */ INSERT INTO effects VALUES (1)",
    "ddl": "CREATE TABLE more AS SELECT 1 AS n",
    "savepoint": "SAVEPOINT one",
}


@pytest.mark.clause("J-30")
@pytest.mark.parametrize("sql", WRITES.values(), ids=WRITES.keys())
def test_the_first_write_of_any_kind_is_in_the_transaction(path: Path, sql: str) -> None:
    def effect(job: Any, context: Any) -> None:
        context.connection.execute(sql)
        assert context.connection.in_transaction
        context.connection.executemany("INSERT INTO effects VALUES (?)", [(2,), (3,)])
        context.connection.cursor().executescript("INSERT INTO effects VALUES (4); SELECT ';'")
        raise RuntimeError("after the effect")

    with open_store(f"sqlite:///{path}") as store, closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE effects (n INTEGER)")
        store.enqueue(QUEUE, {}, max_retries=0)
        JobWorker(store, effect, queues=QUEUE).run_until_idle()
        (job,) = store.list()
        assert (job.state, job.error) == (JobState.FAILED, "after the effect")
        assert database.execute("SELECT count(*) FROM effects").fetchone() == (0,)
        assert database.execute("SELECT * FROM sqlite_master WHERE name = 'more'").fetchall() == []


@pytest.mark.clause("J-21")
def test_a_fork_and_its_parent_each_open_the_file_anew(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        store.enqueue(QUEUE, {})
        assert in_child(lambda: [store.enqueue(QUEUE, {}) for _ in range(20)]) == 0
        store.enqueue(QUEUE, {})
        assert store.stats(QUEUE)[QUEUE].ready == 22


@pytest.mark.clause("J-21")
def test_what_a_child_writes_survives_the_parents_close(path: Path) -> None:
    """The parent, which closes as if it were the last one, must see that the child still has the file open."""
    store = open_store(f"sqlite:///{path}")
    store.enqueue(QUEUE, {})
    ready, closed = os.pipe(), os.pipe()

    def work() -> None:
        store.enqueue(QUEUE, {})
        os.write(ready[1], b".")
        os.read(closed[0], 1)
        store.enqueue(QUEUE, {})

    def close_meanwhile() -> None:
        os.read(ready[0], 1)
        store.enqueue(QUEUE, {})
        store.close()
        os.write(closed[1], b".")

    beside = threading.Thread(target=close_meanwhile)
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    beside.start()
    os.waitpid(pid, 0)
    beside.join(30)
    with open_store(f"sqlite:///{path}") as again:
        assert again.stats(QUEUE)[QUEUE].ready == 4
    for end in (*ready, *closed):
        os.close(end)


def test_a_fork_while_a_handler_has_a_transaction_refuses(path: Path) -> None:
    statuses = []

    def effect(job: Any, context: Any) -> None:
        context.connection.execute("CREATE TABLE effects (n INTEGER)")
        statuses.append(in_child(lambda: context.job and store.list()))

    with open_store(f"sqlite:///{path}") as store:
        store.enqueue(QUEUE, {})
        assert JobWorker(store, effect, queues=QUEUE).run_until_idle().succeeded == 1
    assert statuses == [2]


def test_a_child_can_use_its_parents_app_on_asyncio(path: Path) -> None:
    app = Conquiet(f"sqlite:///{path}")

    @app.task
    async def send(order: int) -> None: ...

    async def enqueue() -> None:
        await send.enqueue_async(1)
        await app.close_async()

    asyncio.run(enqueue())
    assert in_child(lambda: asyncio.run(enqueue())) == 0

    async def count() -> int:
        async with await open_async_store(f"sqlite:///{path}") as store:
            return len(await store.list())

    assert asyncio.run(count()) == 2
