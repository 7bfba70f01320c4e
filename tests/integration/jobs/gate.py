"""A TCP proxy in front of PostgreSQL that can strike at one statement: lose it, or lose the answer to it."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict


class Gate:
    """Passes everything on; the first statement with `text` in it is lost on its way, or its answer is.

    Either way the connection is cut, and the client cannot know which it was.
    """

    def __init__(self, dsn: str, text: str, lost: str) -> None:
        assert lost in ("statement", "answer")
        where = conninfo_to_dict(dsn)
        self._target = (str(where["host"]), int(where["port"]))
        self._text = text.encode()
        self._lost = lost
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="gate")]
        self.struck = threading.Event()
        port = self._listener.getsockname()[1]
        user, password, name = where["user"], where["password"], where["dbname"]
        self.dsn = (
            f"postgresql://{user}:{password}@127.0.0.1:{port}/{name}?sslmode=disable&gssencmode=disable"
        )

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for end in list(self._open):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was faster
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(client,), name="gate connection")
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            ends = {client, server}
            self._open |= ends
            try:
                self._copy(client, server)
            except OSError:
                pass  # cut from outside
            finally:
                self._open -= ends

    def _copy(self, client: socket.socket, server: socket.socket) -> None:
        answer_is_lost = False
        while True:
            for end in select.select((client, server), (), ())[0]:
                data = end.recv(1 << 16)
                if not data or (end is server and answer_is_lost):
                    return
                if end is client and self._text in data and not self.struck.is_set():
                    self.struck.set()
                    if self._lost == "statement":
                        return
                    answer_is_lost = True
                (server if end is client else client).sendall(data)
