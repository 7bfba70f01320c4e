"""Messages from a Redis stream to PostgreSQL, each with exactly one effect: handled, committed, then acknowledged.

A message is delivered again if its consumer dies between the commit and the acknowledgement, like the first one here.
`HandledEntries` records it in the handler's own transaction, so that its effect is not repeated.

Prints:

    the first consumer dies after its commit, before the acknowledgement
    order 2 is booked
    order 3 is booked
    order 1 comes again, and is not booked again
    booked: [(1, 10), (2, 20), (3, 30)], pending: 0
"""

import psycopg

from conquiet.embedded import PostgresServer, RedisServer  # private servers for this example; use your own
from conquiet.queue import (
    HandledEntries,
    PsycopgTransactions,
    QueueConfig,
    QueueConsumer,
    RedisStreamsQueue,
    connect,
)

handled = HandledEntries()


def book(message, tx) -> bool:
    if first := handled.first_time(tx, message):
        tx.execute(
            "INSERT INTO bookings VALUES (%s, %s)", (message.payload["order"], message.payload["amount"])
        )
    return first


def main(redis, database) -> None:
    database.execute("CREATE TABLE bookings (number INT, amount INT)")
    handled.create_table(database)
    database.commit()
    config = QueueConfig("orders", "booking", "consumer-1", block_ms=100, claim_idle_ms=1)
    queue = RedisStreamsQueue(redis, config)
    queue.enqueue_many([{"order": n, "amount": n * 10} for n in (1, 2, 3)])

    lost = QueueConsumer(redis, QueueConfig("orders", "booking", "consumer-0", block_ms=100)).next()
    book(lost, database)
    database.commit()
    print("the first consumer dies after its commit, before the acknowledgement")

    rescuer, consumer = QueueConsumer(redis, config), QueueConsumer(redis, config)

    def handle(message, tx) -> None:
        number = message.payload["order"]
        print(f"order {number}", "is booked" if book(message, tx) else "comes again, and is not booked again")
        if number == 1:
            rescuer.stop()
        if number == 3:
            consumer.stop()  # only so that this example ends

    transactions = PsycopgTransactions(database)
    consumer.run(handler=handle, db_factory=transactions)
    # The recovery, a process of its own in real life, gives way to new messages: there are none left.
    rescuer.run_recovery(handler=handle, db_factory=transactions, interval_ms=10)
    booked = database.execute("SELECT * FROM bookings ORDER BY number").fetchall()
    print(f"booked: {booked}, pending: {queue.backlog_stats().pending}")


if __name__ == "__main__":
    with (
        RedisServer() as redis_server,
        PostgresServer() as postgres_server,
        connect(redis_server.url) as redis,
        psycopg.connect(postgres_server.dsn) as database,
    ):
        main(redis, database)
