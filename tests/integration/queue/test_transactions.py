"""The provided transactions on real databases, and HandledEntries: a message delivered again has no second effect."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.queue import (
    HandledEntries,
    MalformedEntry,
    PsycopgTransactions,
    QueueConfigError,
    QueueConnectionError,
    QueueMessage,
    SqliteTransactions,
)
from tests.integration.queue.databases import (
    INSERT,
    AsyncPsycopgDatabase,
    Database,
    PsycopgDatabase,
    SqlAlchemyDatabase,
    SqliteDatabase,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.stream import Stream, wait_until
from tests.integration.queue.variants import GROUP, STREAM, LoopThread

KINDS = ["sqlite3", "psycopg", "SQLAlchemy on SQLite", "SQLAlchemy on PostgreSQL"]
Handler = Callable[[QueueMessage, Any], Any]


@pytest.fixture(params=KINDS)
def database(
    request: pytest.FixtureRequest, variant: str, tmp_path: Path, loop_thread: LoopThread
) -> Iterator[Database]:
    path = tmp_path / "effects.db"
    made: Database
    if request.param == "sqlite3":
        made = SqliteDatabase(path)
    elif request.param == "SQLAlchemy on SQLite":
        made = SqlAlchemyDatabase(f"sqlite:///{path}")
    else:
        dsn = request.getfixturevalue("postgres_dsn")
        if request.param == "SQLAlchemy on PostgreSQL":
            made = SqlAlchemyDatabase(dsn.replace("postgresql://", "postgresql+psycopg://"))
        elif variant == "async":
            made = AsyncPsycopgDatabase(dsn, loop_thread.wait)
        else:
            made = PsycopgDatabase(dsn)
    yield made
    made.close()


def writing_handler(database: Database, then: Callable[[], object], *, once: bool) -> Handler:
    """Inserts a row for the message; with `once`, only if HandledEntries says that it is the first time."""

    def handle(message: QueueMessage, tx: Any) -> None:
        if not once or database.handled.first_time(tx, message):
            database.execute(tx, INSERT.format(message.id))
        then()

    async def handle_async(message: QueueMessage, tx: Any) -> None:
        if not once or await database.handled.first_time_async(tx, message):
            await database.execute(tx, INSERT.format(message.id))
        then()

    return handle_async if database.asynchronous else handle


@pytest.mark.clause("C-01")
def test_what_the_handler_wrote_is_committed_before_the_ack(
    queues: Any, stream: Stream, gate: Gate, database: Database
) -> None:
    consumer = queues.consumer(client=queues.client(gate.url))
    (entry_id,) = stream.add("{}")
    seen: list[list[str]] = []
    gate.before("XACK", lambda: seen.append(database.effects()))
    handler = writing_handler(database, consumer.stop, once=False)
    consumer.run(handler=handler, db_factory=database.transactions)
    assert seen == [[entry_id]]
    assert stream.pending() == {}


@pytest.mark.clause("C-02")
def test_what_a_failing_handler_wrote_is_rolled_back_and_the_next_message_is_fine(
    queues: Any, stream: Stream, database: Database
) -> None:
    consumer = queues.consumer()
    failed, good = stream.add("{}", "{}")

    def fail() -> None:
        raise RuntimeError("after its effect")

    with pytest.raises(RuntimeError, match="after its effect"):
        consumer.run(handler=writing_handler(database, fail, once=True), db_factory=database.transactions)
    assert database.effects() == []
    handler = writing_handler(database, consumer.stop, once=True)
    consumer.run(handler=handler, db_factory=database.transactions)
    assert database.effects() == [good]
    recovery = queues.consumer("bob", claim_idle_ms=1)
    handler = writing_handler(database, recovery.stop, once=True)
    recovery.run_recovery(handler=handler, db_factory=database.transactions, interval_ms=5)
    assert sorted(database.effects()) == sorted(
        [failed, good]
    )  # rolled back is not handled: this time it counts


@pytest.mark.clause("C-05")
def test_a_message_that_comes_again_after_a_lost_ack_has_no_second_effect(
    queues: Any, stream: Stream, gate: Gate, database: Database
) -> None:
    consumer = queues.consumer(client=queues.client(gate.url))
    (entry_id,) = stream.add("{}")
    gate.lose("XACK")
    with pytest.raises(QueueConnectionError):
        consumer.run(
            handler=writing_handler(database, lambda: None, once=True), db_factory=database.transactions
        )
    assert database.effects() == [entry_id]
    assert stream.pending() == {entry_id: "alice"}
    recovery = queues.consumer("bob", claim_idle_ms=1)
    again: list[str] = []

    def note() -> None:
        again.append("delivered again")
        recovery.stop()

    handler = writing_handler(database, note, once=True)
    recovery.run_recovery(handler=handler, db_factory=database.transactions, interval_ms=5)
    assert again == ["delivered again"]
    assert database.effects() == [entry_id]
    assert stream.pending() == {}


def message(entry_id: str, stream: str = STREAM, group: str = GROUP) -> QueueMessage:
    return QueueMessage(entry_id, {}, stream, group)


def test_an_entry_is_known_by_stream_group_and_id(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "handled.db")
    try:
        handled = HandledEntries("seen_entries")
        handled.create_table(connection)
        handled.create_table(connection)  # a second call does no harm
        others = [message("1-1"), message("1-2"), message("1-1", stream="s2"), message("1-1", group="g2")]
        assert [handled.first_time(connection, m) for m in others] == [True] * 4
        assert [handled.first_time(connection, m) for m in others] == [False] * 4
        assert not handled.first_time(connection, MalformedEntry("1-1", STREAM, GROUP, "not JSON", 3))
        connection.rollback()
        assert handled.first_time(connection, others[0])
        assert connection.execute("SELECT count(*) FROM seen_entries").fetchone() == (1,)
    finally:
        connection.close()


def test_on_postgresql_the_time_of_handling_has_a_zone(postgres_dsn: str) -> None:
    with psycopg.connect(f"{postgres_dsn}?options=-c%20timezone%3DAsia/Tokyo") as connection:
        handled = HandledEntries()
        handled.create_table(connection)
        handled.first_time(connection, message("1-1"))
        (at, now) = connection.execute("SELECT handled_at, now() FROM conquiet_handled_entries").fetchone()
        assert at == now  # with a zone: a time without one could not be compared


@pytest.mark.parametrize(("end", "first"), [("commit", False), ("rollback", True)])
def test_on_postgresql_a_second_delivery_at_the_same_time_waits_for_the_first(
    postgres_dsn: str, beside: ThreadPoolExecutor, end: str, first: bool
) -> None:
    handled = HandledEntries()
    with psycopg.connect(postgres_dsn) as one, psycopg.connect(postgres_dsn) as two:
        handled.create_table(one)
        one.commit()
        assert handled.first_time(one, message("1-1"))
        asking = beside.submit(handled.first_time, two, message("1-1"))
        with psycopg.connect(postgres_dsn, autocommit=True) as watching:
            waiting = f"SELECT 1 FROM pg_stat_activity WHERE pid = {two.info.backend_pid} AND wait_event_type = 'Lock'"
            wait_until(lambda: watching.execute(waiting).fetchone(), "the second to wait for a lock")
        assert not asking.done()
        getattr(one, end)()
        assert asking.result(timeout=10) is first


def test_a_connection_in_autocommit_mode_is_refused(postgres_dsn: str, loop_thread: LoopThread) -> None:
    with (
        psycopg.connect(postgres_dsn, autocommit=True) as connection,
        pytest.raises(QueueConfigError, match="connect with autocommit=False"),
    ):
        PsycopgTransactions(connection)
    connection = loop_thread.wait(psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True))
    try:
        with pytest.raises(QueueConfigError, match="connect with autocommit=False"):
            PsycopgTransactions(connection)
    finally:
        loop_thread.wait(connection.close())


class WithAutocommit(sqlite3.Connection):
    """Like `sqlite3.connect(…, autocommit=True)` from Python 3.12 on: its `commit` does nothing."""

    autocommit = True


def test_a_sqlite_connection_that_commits_by_itself_is_refused() -> None:
    connection = sqlite3.connect(":memory:", factory=WithAutocommit)
    try:
        with pytest.raises(QueueConfigError, match="connect without autocommit"):
            SqliteTransactions(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", "EXCLUSIVE", None], ids=repr)
def test_the_isolation_level_of_a_sqlite_connection_does_not_matter(
    isolation_level: Any, tmp_path: Path
) -> None:
    connection = sqlite3.connect(tmp_path / "any.db", isolation_level=isolation_level)
    try:
        connection.execute("CREATE TABLE effects (n)")
        transactions = SqliteTransactions(connection)
        for number, end in enumerate(("commit", "rollback", "commit")):
            tx = transactions.begin()
            tx.execute(f"INSERT INTO effects VALUES ({number})")
            assert connection.in_transaction
            getattr(tx, end)()
            assert not connection.in_transaction
        assert connection.execute("SELECT n FROM effects").fetchall() == [(0,), (2,)]
    finally:
        connection.close()


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a;drop table b", 'a"b', "a.b", "é", "x" * 64, "x\n"], ids=repr
)
def test_a_bad_table_name_is_refused(name: str) -> None:
    with pytest.raises(QueueConfigError, match="is not a table name"):
        HandledEntries(name)


def test_a_transaction_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(QueueConfigError, match="tx is a object; HandledEntries knows SQLAlchemy"):
        HandledEntries().first_time(object(), message("1-1"))
