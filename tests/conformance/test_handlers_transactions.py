"""Handlers that end the transaction of their context: the job is Failed, and never apart from its effect unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session

from conquiet.flow import run
from conquiet.jobs import Job, JobState, JobWorker, open_store

INSERT = "INSERT INTO effects VALUES (1)"


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_dsn"))


def handled(dsn: str, handler: Callable[..., Any], isolation: str = "thread") -> tuple[Job, int]:
    """Run one job with this handler. Return it and the number of effects in the database."""
    with open_store(dsn) as store:
        backend = store.operations.backend
        connection: Any = run(backend.begin())
        connection.execute("CREATE TABLE effects (n integer)")
        run(backend.commit(connection))
        store.enqueue("a", {})
        JobWorker(store, handler, queues="a", isolation=isolation).run_until_idle()
        connection = run(backend.begin())
        (count,) = connection.execute("SELECT count(*) FROM effects").fetchone()
        run(backend.roll_back(connection))
        (job,) = store.list()
        return job, count


def session_on(connection: Any, dsn: str) -> Session:
    url = "sqlite://" if dsn.startswith("sqlite") else "postgresql+psycopg://"
    return Session(create_engine(url, creator=lambda: connection, poolclass=StaticPool))


def assert_refused(job: Job, count: int, effects: int = 0) -> None:
    assert (job.state, job.retries, count) == (JobState.FAILED, 0, effects)
    assert "ended the transaction of context.connection itself" in job.error
    assert "Leave the transaction open" in job.error


@pytest.mark.clause("J-30")
@pytest.mark.parametrize("before", [False, True])
def test_a_session_that_rolls_back_at_its_close_fails_the_job(dsn: str, before: bool) -> None:
    def handler(job: Any, context: Any) -> None:
        if before:
            context.connection.execute(INSERT)
        with session_on(context.connection, dsn) as session:
            session.execute(text(INSERT))

    assert_refused(*handled(dsn, handler))


@pytest.mark.clause("J-30")
def test_what_is_written_after_it_is_not_committed_by_itself(dsn: str) -> None:
    def handler(job: Any, context: Any) -> None:
        with session_on(context.connection, dsn) as session:
            session.execute(text(INSERT))
        context.connection.execute(INSERT)

    assert_refused(*handled(dsn, handler))


@pytest.mark.clause("J-30")
def test_a_session_cannot_commit(dsn: str) -> None:
    def handler(job: Any, context: Any) -> None:
        context.connection.execute(INSERT)
        with session_on(context.connection, dsn) as session:
            session.execute(text(INSERT))
            session.commit()

    assert_refused(*handled(dsn, handler))


ENDS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "with": lambda connection: connection.__enter__() and connection.__exit__(None, None, None),
    "rollback in SQL": lambda connection: connection.execute("ROLLBACK"),
}


@pytest.mark.clause("J-30")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_nor_can_the_connection_itself(dsn: str, end: Callable[[Any], Any]) -> None:
    def handler(job: Any, context: Any) -> None:
        context.connection.execute(INSERT)
        end(context.connection)

    assert_refused(*handled(dsn, handler))


@pytest.mark.clause("J-30")
def test_a_commit_in_sql_is_noticed(dsn: str) -> None:
    """SQLite refuses it before; on PostgreSQL the effect is committed, and not repeated by retries."""

    def handler(job: Any, context: Any) -> None:
        context.connection.execute(INSERT)
        context.connection.execute("COMMIT")

    assert_refused(*handled(dsn, handler), effects=0 if dsn.startswith("sqlite") else 1)


@pytest.mark.clause("J-30")
def test_coroutines_are_no_exception(dsn: str) -> None:
    async def handler(job: Any, context: Any) -> None:
        connection = await context.get_connection()
        for result in (connection.execute(INSERT), connection.rollback()):
            if asyncio.iscoroutine(result):
                await result

    assert_refused(*handled(dsn, handler, "async"))


@pytest.mark.clause("J-30")
def test_savepoints_are_the_handlers_own(dsn: str) -> None:
    def handler(job: Any, context: Any) -> None:
        connection = context.connection
        connection.execute(INSERT)
        connection.execute("SAVEPOINT part")
        connection.execute(INSERT)
        connection.execute("ROLLBACK TO SAVEPOINT part")
        connection.execute("RELEASE SAVEPOINT part")

    job, count = handled(dsn, handler)
    assert (job.state, count) == (JobState.SUCCEEDED, 1)


@pytest.mark.clause("J-30")
def test_a_handler_that_only_reads_succeeds(dsn: str) -> None:
    def handler(job: Any, context: Any) -> None:
        context.connection.execute("SELECT count(*) FROM effects").fetchone()

    job, count = handled(dsn, handler)
    assert (job.state, count) == (JobState.SUCCEEDED, 0)
