"""`make run`: private servers, messages through them, a server killed in the middle, and a count at the end."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import psycopg
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from conquiet import __version__
from conquiet.embedded import PostgresServer, RedisServer, find_java
from conquiet.errors import ConquietError, QueueConnectionError
from conquiet.queue import (
    HandledEntries,
    PsycopgTransactions,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    connect,
    unique_consumer_name,
)

MESSAGES = 500

_console = Console(highlight=False, soft_wrap=True)
_handled_entries = HandledEntries()


def main() -> int:
    _console.print(
        f"[bold]conquiet {__version__}[/] on Python {platform.python_version()}, {platform.machine()}"
    )
    try:
        _console.print(f"  java        {escape(_java())}")
        with (
            _told("redis", RedisServer(appendonly=True, appendfsync="always")) as redis_server,
            _told("postgresql", PostgresServer()) as postgres_server,
        ):
            return _check(redis_server, postgres_server)
    except ConquietError as error:
        _console.print(f"[red]failed:[/] {escape(str(error))}")
        return 1


def _java() -> str:
    try:
        return find_java().describe()
    except ConquietError as error:
        return f"none, needed for Spark only ({error})"


@contextmanager
def _told(name: str, server: Any) -> Iterator[Any]:
    began = perf_counter()
    with server:
        _console.print(f"  {name:<11} {server.describe()}, ready after {perf_counter() - began:.1f} s")
        yield server


def _check(redis_server: RedisServer, postgres_server: PostgresServer) -> int:
    """Messages into PostgreSQL rows, with Redis killed half-way: none may be missing, none may be there twice."""
    began = perf_counter()
    config = QueueConfig("orders", "billing", unique_consumer_name(), block_ms=200, claim_idle_ms=1)
    redis = connect(redis_server.url)
    ids = RedisStreamsQueue(redis, config).enqueue_many({"order": number} for number in range(MESSAGES))
    with psycopg.connect(postgres_server.dsn) as connection, Progress(console=_console) as progress:
        connection.execute("CREATE TABLE invoices (order_number int NOT NULL)")
        _handled_entries.create_table(connection)
        connection.commit()
        bar = progress.add_task("handled", total=MESSAGES)
        transactions = PsycopgTransactions(connection)
        consumer = QueueConsumer(redis, config)
        handled = 0

        def handler(message: QueueMessage, tx: Any) -> None:
            nonlocal handled
            if _handled_entries.first_time(tx, message):
                tx.execute("INSERT INTO invoices VALUES (%s)", (message.payload["order"],))
                handled += 1
                progress.update(bar, completed=handled)
            if handled == MESSAGES // 2 and not killed:
                killed.append("handled, committed, not yet acknowledged")
                redis_server.kill()
            if handled == MESSAGES:
                consumer.stop()

        killed: list[str] = []
        try:
            consumer.run(handler=handler, db_factory=transactions)
        except QueueConnectionError as error:
            progress.console.print(
                f"  redis killed (-9) with a message {killed[0]}; the consumer said:\n    {escape(str(error))}"
            )
            redis_server.restart()
            again = consumer.claim_stale()
            progress.console.print(f"  redis restarted; {len(again)} message delivered again by claim_stale")
            for message in again:
                tx = transactions.begin()
                handler(message, tx)
                tx.commit()
                consumer.ack(message)
            consumer.run(handler=handler, db_factory=transactions)
        rows = connection.execute("SELECT count(*), count(DISTINCT order_number) FROM invoices").fetchone()
        pending = consumer.backlog_stats().pending
    redis.close()
    assert rows is not None
    seconds = perf_counter() - began
    missing, twice = len(ids) - rows[1], rows[0] - rows[1]
    right = missing == twice == pending == 0 and len(killed) == 1
    _console.print(
        f"[bold {'green' if right else 'red'}]{'right' if right else 'WRONG'}:[/] {len(ids)} messages enqueued, "
        f"{rows[1]} effects, {missing} missing, {twice} doubled, {pending} pending, in {seconds:.1f} s"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
