"""A proxy in front of PostgreSQL that cuts one statement: it loses the statement, or its answer."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

from conquiet.verify.proxy import PostgresFraming, Proxy


class Gate(Proxy):
    """Forwards everything; the first statement that contains `text` is lost on its way, or its answer is.

    Either way the connection is cut, and the client cannot know which it was.
    """

    def __init__(self, dsn: str, text: str, lost: str) -> None:
        where = conninfo_to_dict(dsn)
        super().__init__((str(where["host"]), int(where["port"] or 0)), PostgresFraming)
        self.struck = self.strike(text, "command" if lost == "statement" else "reply").done
        user, password, name = where["user"], where["password"], where["dbname"]
        self.dsn = (
            f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{name}?sslmode=disable&gssencmode=disable"
        )
