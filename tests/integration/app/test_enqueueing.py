"""Calls enqueued in real databases: in the caller's transaction, with a delay, on asyncio."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from conquiet import Conquiet
from conquiet.errors import StoreUnavailableError
from conquiet.jobs import JobState
from conquiet.testing import assert_enqueued, enqueued


def connected(dsn: str) -> Any:
    return (
        psycopg.connect(dsn)
        if dsn.startswith("postgresql")
        else sqlite3.connect(dsn.removeprefix("sqlite:///"))
    )


def test_a_call_is_queued_if_the_callers_transaction_commits(app: Conquiet) -> None:
    @app.task
    def send(to: str) -> None: ...

    assert app.store.list() == []  # opens the store and creates its tables
    with closing(connected(app.dsn)) as connection:
        send.enqueue("ann", connection=connection)
        send.enqueue_many([("bob",), ("cy",)], connection=connection)
        connection.rollback()
        assert enqueued(send) == []
        send.enqueue("ann", connection=connection)
        send.options(connection=connection).enqueue("bob")
        assert enqueued(send) == []
        connection.commit()
    assert [job.payload["arguments"]["to"] for job in enqueued(send)] == ["ann", "bob"]
    assert app.drain().succeeded == 2


def test_the_same_with_sqlalchemy(app: Conquiet) -> None:
    @app.task
    def send(to: str) -> None: ...

    assert app.store.list() == []
    engine = create_engine(app.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        send.enqueue("ann", connection=session)
    with Session(engine) as session:
        send.enqueue("bob", connection=session)
        session.rollback()
    engine.dispose()
    assert [job.payload["arguments"]["to"] for job in enqueued(send)] == ["ann"]


def test_a_call_is_not_run_before_its_time(app: Conquiet) -> None:
    seen: list[str] = []

    @app.task
    def note(what: str) -> None:
        seen.append(what)

    note.enqueue("in an hour", at=datetime.now(UTC) + timedelta(hours=1))
    note.enqueue("was due", at=datetime.now(UTC) - timedelta(hours=1))
    note.enqueue("in a moment", delay=0.2)
    app.drain()
    assert seen[0] == "was due"
    while len(seen) < 2:
        app.drain()
    assert seen == ["was due", "in a moment"]
    assert enqueued(note, "in an hour")[0].state is JobState.READY


def test_on_asyncio(app: Conquiet) -> None:
    seen: list[str] = []

    @app.task
    async def note(what: str) -> None:
        await asyncio.sleep(0)
        seen.append(what)

    async def use(number: int) -> None:
        async with app:
            jobs = await asyncio.gather(*(note.enqueue_async(f"{number}.{n}") for n in range(20)))
            assert len({job.id for job in jobs}) == 20
            store = await app.async_store()
            assert (await store.get(jobs[0].id)).state is JobState.READY
            assert (await app.worker().run_async(until_idle=True)).succeeded == 20

    for number in range(2):  # each has its own loop, and therefore its own store
        asyncio.run(use(number))
    assert len(set(seen)) == 40


def test_on_asyncio_in_the_callers_transaction(postgres_dsn: str) -> None:
    async def use(app: Conquiet) -> None:
        @app.task
        def send(to: str) -> None: ...

        async with app, await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
            await send.enqueue_async("ann", delay=0)  # creates the tables
            await send.enqueue_async("bob", connection=connection)
            await connection.rollback()
            await send.enqueue_async("cy", connection=connection)
            await connection.commit()
            found = [job.payload["arguments"]["to"] for job in enqueued(send)]
        assert found == ["ann", "cy"]

    asyncio.run(use(Conquiet(postgres_dsn)))


def test_in_memory_both_see_the_same_jobs(memory: Conquiet) -> None:
    @memory.task
    def send(to: str) -> None: ...

    for _ in range(3):
        asyncio.run(send.enqueue_async("ann"))
    assert len(assert_enqueued(send, "ann")) == 3
    assert len(memory.stores._async_stores) == 1  # stores of ended event loops are dropped


def test_a_store_that_cannot_be_opened_is_tried_again(tmp_path: Any) -> None:
    """Also when it is opened for an event loop."""
    folder = tmp_path / "missing"
    app = Conquiet(f"sqlite:///{folder}/jobs.db")

    @app.task
    def send(to: str) -> None: ...

    async def use() -> None:
        with pytest.raises(StoreUnavailableError):
            await send.enqueue_async("ann")
        folder.mkdir()
        await send.enqueue_async("ann")
        await app.close_async()

    asyncio.run(use())
    assert len(enqueued(send)) == 1
    app.close()
