"""`connection=` of coroutines: SQLAlchemy's AsyncSession and AsyncConnection on each driver, and the drivers themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from conquiet import Conquiet
from conquiet.jobs import (
    AsyncJobStore,
    DuplicateJobError,
    JobConfigError,
    JobState,
    NewJob,
    StaleLeaseError,
    StoreUnavailableError,
    open_async_store,
    open_store,
)

QUEUE = "orders"
DRIVERS = ["postgresql+psycopg", "postgresql+asyncpg", "sqlite+aiosqlite"]


class Abandoned(Exception):
    """Raised in a transaction to have it rolled back."""


@pytest.fixture(params=DRIVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    scheme, _, driver = request.param.partition("+")
    dsn = f"sqlite:///{tmp_path}/jobs.db" if scheme == "sqlite" else request.getfixturevalue("postgres_dsn")
    return f"{scheme}+{driver}://{dsn.partition('://')[2]}"


@asynccontextmanager
async def session(url: str) -> AsyncIterator[AsyncSession]:
    async with _engine(url) as engine, AsyncSession(engine) as opened:
        yield opened
        await opened.commit()


@asynccontextmanager
async def begin(url: str) -> AsyncIterator[AsyncConnection]:
    async with _engine(url) as engine, engine.begin() as connection:
        yield connection


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[AsyncConnection]:
    async with _engine(url) as engine, engine.connect() as connection:
        yield connection
        await connection.commit()


@asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url, poolclass=NullPool)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def driver(url: str) -> AsyncIterator[Any]:
    """The driver without SQLAlchemy."""
    scheme, _, place = url.partition("://")
    if scheme == "sqlite+aiosqlite":
        async with aiosqlite.connect(place[1:]) as lite:
            yield lite
            await lite.commit()
    elif scheme == "postgresql+asyncpg":
        connection = await asyncpg.connect(f"postgresql://{place}")
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    else:
        async with await psycopg.AsyncConnection.connect(f"postgresql://{place}") as opened:
            yield opened


async def effect(connection: Any) -> None:
    alchemy = isinstance(connection, AsyncSession | AsyncConnection)
    await connection.execute(text(INSERT) if alchemy else INSERT)


INSERT = "INSERT INTO effects VALUES (1)"
Connect = Callable[[str], Any]


@pytest.fixture(params=[session, begin, connect, driver], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Connect:
    return request.param


async def prepared(url: str, work: Callable[[AsyncJobStore], Coroutine[Any, Any, None]]) -> None:
    async with await open_async_store(url) as store:
        async with begin(url) as connection:
            await connection.execute(text("CREATE TABLE effects (n integer)"))
        await work(store)


async def effects(url: str) -> int:
    async with connect(url) as connection:
        return int((await connection.execute(text("SELECT count(*) FROM effects"))).scalar_one())


@pytest.mark.clause("J-29")
@pytest.mark.parametrize("first", ["effect", "enqueue"])
def test_a_job_and_an_effect_commit_together_or_not_at_all(url: str, kind: Connect, first: str) -> None:
    async def write(store: AsyncJobStore, connection: Any, name: str) -> None:
        if first == "effect":
            await effect(connection)
        new = NewJob({"ä": "ö"}, id=name, correlation_id='"{,\\}', delay=0.5, priority=-3)
        await store.enqueue_job(QUEUE, new, connection=connection)
        await store.enqueue_many(QUEUE, [{}, {}], connection=connection)
        assert await store.get(name) is None
        if first == "enqueue":
            await effect(connection)

    async def work(store: AsyncJobStore) -> None:
        async def give_up() -> None:
            async with kind(url) as connection:
                await write(store, connection, "lost")
                raise Abandoned

        with pytest.raises(Abandoned):
            await give_up()
        assert (await effects(url), await store.list()) == (0, [])
        async with kind(url) as connection:
            await write(store, connection, "kept")
        assert (await effects(url), len(await store.list())) == (1, 3)
        job = await store.get("kept")
        assert (job.payload, job.correlation_id, job.priority) == ({"ä": "ö"}, '"{,\\}', -3)
        assert job.retry_at > job.enqueued_at

    asyncio.run(prepared(url, work))


@pytest.mark.clause("J-29", "J-03")
def test_a_refused_duplicate_leaves_the_callers_work_alone(url: str, kind: Connect) -> None:
    async def work(store: AsyncJobStore) -> None:
        await store.enqueue(QUEUE, {}, id="taken")
        async with kind(url) as connection:
            await effect(connection)
            with pytest.raises(DuplicateJobError) as refused:
                await store.enqueue_many(
                    QUEUE, [NewJob({}, id="a"), NewJob({}, id="taken")], connection=connection
                )
            assert refused.value.ids == ("taken",)
            items = [NewJob({}, id="b"), NewJob({}, id="taken")]
            added = await store.enqueue_many(QUEUE, items, on_duplicate="skip", connection=connection)
            assert added == ["b"]
        assert (await effects(url), [job.id for job in await store.list()]) == (1, ["taken", "b"])

    asyncio.run(prepared(url, work))


@pytest.mark.clause("J-30", "J-09")
def test_an_ack_commits_with_its_effect_and_a_stale_one_is_refused(url: str, kind: Connect) -> None:
    async def work(store: AsyncJobStore) -> None:
        await store.enqueue(QUEUE, {})
        (held,) = await store.claim(QUEUE, lease_ttl=600)

        async def give_up() -> None:
            async with kind(url) as connection:
                await store.ack(held, connection=connection)
                raise Abandoned

        with pytest.raises(Abandoned):
            await give_up()
        async with kind(url) as connection:
            await effect(connection)
            await store.ack(held, connection=connection)
        assert (await effects(url), (await store.get(held.id)).state) == (1, JobState.SUCCEEDED)
        async with kind(url) as connection:
            with pytest.raises(StaleLeaseError):
                await store.ack(held, connection=connection)

    asyncio.run(prepared(url, work))


@pytest.mark.clause("J-29")
def test_tasks_of_an_app_take_a_session(url: str) -> None:
    app = Conquiet(url)

    @app.task
    async def send(order: int) -> None: ...

    async def main() -> None:
        async with session(url) as opened:
            await send.enqueue_async(1, connection=opened)
            await opened.rollback()
            await send.enqueue_async(2, connection=opened)
        await app.close_async()

    asyncio.run(main())
    with open_store(url) as store:
        assert [send.arguments_of(job) for job in store.list()] == [{"order": 2}]


def test_a_synchronous_store_names_the_coroutines(url: str) -> None:
    async def main() -> None:
        with open_store(url) as store:
            async with session(url) as opened:
                with pytest.raises(JobConfigError, match=r"no SQLAlchemy AsyncSession: use the coroutines"):
                    store.enqueue(QUEUE, {}, connection=opened)

    asyncio.run(main())


def test_a_connection_that_commits_by_itself_is_refused(url: str) -> None:
    async def work(store: AsyncJobStore) -> None:
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        async with engine.connect() as connection:
            with pytest.raises(JobConfigError, match="commits every statement by itself"):
                await store.enqueue(QUEUE, {}, connection=connection)
        await engine.dispose()
        assert await store.list() == []

    asyncio.run(prepared(url, work))


def test_a_closed_connection_is_an_outage(url: str) -> None:
    async def work(store: AsyncJobStore) -> None:
        async with begin(url) as connection:
            pass
        with pytest.raises(StoreUnavailableError, match="connection= cannot be used"):
            await store.enqueue(QUEUE, {}, connection=connection)

    asyncio.run(prepared(url, work))


def test_a_lost_connection_of_asyncpg_is_an_outage(postgres_dsn: str) -> None:
    url = postgres_dsn.replace("postgresql://", "postgresql+asyncpg://")

    async def work(store: AsyncJobStore) -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("BEGIN")
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", (connection.get_server_pid(),))
        with pytest.raises(StoreUnavailableError, match="given as connection="):
            await store.enqueue(QUEUE, {}, connection=connection)
        connection.terminate()

    asyncio.run(prepared(url, work))
