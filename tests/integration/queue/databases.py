"""Real databases behind one interface: what a handler writes, in which kind of transaction, and what is committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import sessionmaker

from conquiet.queue import HandledEntries, PsycopgTransactions, SqlAlchemyTransactions, SqliteTransactions

INSERT = "INSERT INTO effects (entry_id) VALUES ('{}')"


class Database:
    """`transactions` is the db_factory; the table of `handled` and a table `effects` exist."""

    transactions: Any
    asynchronous = False

    def __init__(self) -> None:
        self.handled = HandledEntries()
        self._closing: list[Callable[[], object]] = []

    def execute(self, tx: Any, sql: str) -> Any:
        return tx.execute(sql)

    def effects(self) -> list[str]:
        """The committed effects, as another connection sees them."""
        raise NotImplementedError

    def close(self) -> None:
        for close in self._closing:
            close()


class SqliteDatabase(Database):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        # The asyncio consumer of the tests runs on its loop's thread.
        connection = sqlite3.connect(path, check_same_thread=False)
        self._closing.append(connection.close)
        self.handled.create_table(connection)
        connection.execute("CREATE TABLE effects (entry_id TEXT)")
        connection.commit()
        self.transactions = SqliteTransactions(connection)

    def effects(self) -> list[str]:
        other = sqlite3.connect(self._path)
        try:
            return [row[0] for row in other.execute("SELECT entry_id FROM effects ORDER BY rowid")]
        finally:
            other.close()


class SqlAlchemyDatabase(Database):
    """Any database of SQLAlchemy; here SQLite and PostgreSQL."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._engine = create_engine(url, poolclass=NullPool)
        self._closing.append(self._engine.dispose)
        sessions = sessionmaker(self._engine)
        with sessions() as session:
            self.handled.create_table(session)
            session.execute(text("CREATE TABLE effects (entry_id TEXT)"))
            session.commit()
        self.transactions = SqlAlchemyTransactions(sessions)

    def execute(self, tx: Any, sql: str) -> Any:
        return tx.execute(text(sql))

    def effects(self) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.scalars(text("SELECT entry_id FROM effects ORDER BY entry_id")))


class PsycopgDatabase(Database):
    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self.create_tables()
        self.connect()

    def create_tables(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            self.handled.create_table(connection)
            connection.execute("CREATE TABLE effects (entry_id TEXT)")

    def connect(self) -> None:
        connection = psycopg.connect(self._dsn)
        self._closing.append(connection.close)
        self.transactions = PsycopgTransactions(connection)

    def effects(self) -> list[str]:
        with psycopg.connect(self._dsn) as other:
            return [
                row[0] for row in other.execute("SELECT entry_id FROM effects ORDER BY entry_id").fetchall()
            ]


class AsyncPsycopgDatabase(PsycopgDatabase):
    """With an AsyncConnection, on the loop of the consumer."""

    asynchronous = True

    def __init__(self, dsn: str, wait: Callable[[Any], Any]) -> None:
        self._wait = wait
        super().__init__(dsn)

    def connect(self) -> None:
        connection = self._wait(psycopg.AsyncConnection.connect(self._dsn))
        self._closing.append(lambda: self._wait(connection.close()))
        self.transactions = PsycopgTransactions(connection)
