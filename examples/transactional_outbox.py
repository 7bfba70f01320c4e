"""A job that exists exactly if the change that caused it is committed, with SQLAlchemy on PostgreSQL.

The order and the e-mail about it are in one transaction: no outbox table, no second process, no e-mail about an order
that was rolled back. (`connection=` also takes psycopg and sqlite3 connections.)

Prints:

    order 1 is placed
    order 2 is refused: no more than 100 at a time
    orders in the database: [1]
    e-mail about order 1 to ann@example.com
"""

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from conquiet import Conquiet
from conquiet.embedded import PostgresServer  # a private server for this example; use your own


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


def main(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    app = Conquiet(dsn)

    @app.task(queue="emails")
    def confirm(number: int, to: str) -> None:
        print(f"e-mail about order {number} to {to}")

    def place(number: int, amount: int) -> None:
        with Session(engine) as session, session.begin():
            session.add(Order(number=number, amount=amount))
            confirm.enqueue(number, "ann@example.com", connection=session)
            if amount > 100:
                raise ValueError("no more than 100 at a time")

    with app:
        app.store.stats()  # opens the store, which creates its table
        for number, amount in ((1, 20), (2, 500)):
            try:
                place(number, amount)
                print(f"order {number} is placed")
            except ValueError as error:
                print(f"order {number} is refused: {error}")
        with Session(engine) as session:
            print("orders in the database:", list(session.scalars(select(Order.number))))
        app.worker().run_until_idle()
    engine.dispose()


if __name__ == "__main__":
    with PostgresServer() as server:
        main(server.dsn)
