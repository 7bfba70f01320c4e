"""A fresh SQLAlchemy session per job: real ones, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from conquiet.local import LAST_EXCEPTIONS, PriorityDelayQueue, Worker, WorkerPool

JOBS = 40


class Base(DeclarativeBase):
    pass


class Done(Base):
    __tablename__ = "done"
    job: Mapped[int] = mapped_column(Integer, primary_key=True)


class NotedSession(Session):
    """Records what is done with it."""

    made: list[NotedSession]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: list[str] = []
        self.thread = threading.current_thread().name
        NotedSession.made.append(self)

    def commit(self) -> None:
        self.calls.append("commit")
        super().commit()

    def rollback(self) -> None:
        self.calls.append("rollback")
        super().rollback()

    def close(self) -> None:
        self.calls.append("close")
        super().close()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'reports.db'}"
    else:
        dsn = str(request.getfixturevalue("postgres_dsn"))
        url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    # Only three connections: a session that is not closed keeps one, and the next job finds none.
    engine = create_engine(url, pool_size=3, max_overflow=0, pool_timeout=5)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[NotedSession]:
    NotedSession.made = []
    LAST_EXCEPTIONS.clear()
    return sessionmaker(engine, class_=NotedSession)


def stored(engine: Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(select(Done.job).order_by(Done.job)))


def run_all(queue: PriorityDelayQueue, make: Callable[[], Worker | WorkerPool]) -> None:
    for job in range(JOBS):
        queue.enqueue(job)
    queue.shutdown()
    worker = make()
    worker.start()
    assert worker.join(60)


def write(job: int, session: NotedSession) -> None:
    session.add(Done(job=job))
    session.flush()
    if job % 4 == 1:
        raise ValueError(f"job {job} fails after it has written")
    if job % 4 == 2:
        raise SystemExit(f"job {job} wants to leave")
    if job % 4 == 3:
        return  # does not commit
    session.commit()


def expect(engine: Engine, threads: set[str]) -> None:
    assert stored(engine) == list(range(0, JOBS, 4))  # the others were rolled back or never committed
    assert len(LAST_EXCEPTIONS) == JOBS // 2
    assert len(NotedSession.made) == JOBS  # one each
    endings = sorted(tuple(session.calls) for session in NotedSession.made)
    quarter = JOBS // 4
    assert endings == sorted(
        [("commit", "close")] * quarter + [("rollback", "close")] * 2 * quarter + [("close",)] * quarter
    )
    assert {session.thread for session in NotedSession.made} <= threads
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.clause("W-15")
def test_each_job_has_a_session_that_is_rolled_back_on_error_and_closed(
    engine: Engine, sessions: sessionmaker[NotedSession]
) -> None:
    queue = PriorityDelayQueue()
    run_all(queue, lambda: Worker(queue, write, session_factory=sessions))
    expect(engine, {"conquiet worker"})


@pytest.mark.clause("W-15", "W-16")
def test_in_a_pool_no_two_jobs_share_a_session(engine: Engine, sessions: sessionmaker[NotedSession]) -> None:
    queue = PriorityDelayQueue()
    in_use: set[int] = set()
    shared: list[int] = []
    lock = threading.Lock()
    writing = threading.Lock()  # SQLite has one writer, and this test is about sessions

    def handler(job: int, session: NotedSession) -> None:
        with lock:
            if id(session) in in_use:
                shared.append(job)
            in_use.add(id(session))
        try:
            session.scalars(select(Done.job).limit(1)).all()
            session.rollback()
            session.calls.clear()
            with writing:
                try:
                    write(job, session)
                finally:
                    Session.rollback(session)  # end the transaction, so that the next job can write
        finally:
            with lock:
                in_use.discard(id(session))

    run_all(queue, lambda: WorkerPool(queue, handler, 3, session_factory=sessions))
    assert shared == []
    expect(engine, {f"conquiet worker-{number}" for number in (1, 2, 3)})


class Broken:
    """A session whose connection is gone."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def rollback(self) -> None:
        self.calls.append("rollback")
        raise ConnectionError("no rollback at postgresql://ann:hunter2@db/x")

    def close(self) -> None:
        self.calls.append("close")
        raise ConnectionError("no close")


@pytest.mark.clause("W-14", "W-15")
def test_the_jobs_own_error_is_told_when_cleaning_up_fails_too(caplog: pytest.LogCaptureFixture) -> None:
    LAST_EXCEPTIONS.clear()
    queue, sessions = PriorityDelayQueue(), [Broken(), Broken()]

    def handler(job: int, session: Broken) -> None:
        if job == 0:
            raise ValueError("the cause")

    left = iter(sessions)
    queue.enqueue(0)
    queue.enqueue(1)
    queue.enqueue(2)
    queue.shutdown()
    worker = Worker(queue, handler, session_factory=lambda: next(left))
    worker.start()
    assert worker.join(10)
    assert [(entry["type"], entry["error"]) for entry in LAST_EXCEPTIONS] == [
        ("ValueError", "the cause"),
        ("ConnectionError", "no close"),  # the job was done, and its session could not be closed
        ("StopIteration", ""),  # no session could be made
    ]
    assert [session.calls for session in sessions] == [["rollback", "close"], ["close"]]
    assert "its session was not rolled back: ConnectionError: no rollback" in caplog.text
    assert "its session was not closed: ConnectionError: no close" in caplog.text
    assert "hunter2" not in caplog.text
