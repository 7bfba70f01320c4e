"""A relay in front of a server: accepts connections and serves each on its own thread."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["Address", "CutError", "Relay"]

Address = int | tuple[str, int] | str  # a port of this machine, host and port, or the path of a Unix socket


class CutError(Exception):
    """Ends this connection."""


class Relay:
    """Listens on a free port of this machine (`port`) until its block ends; a subclass decides what passes."""

    def __init__(self, target: Address) -> None:
        self._target = ("127.0.0.1", target) if isinstance(target, int) else target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="relay")]

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass bytes until a side closes or the connection should end. When this returns, or raises CutError or OSError,
        both are closed.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for end in list(self._open):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed by the peer
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), name="relayed connection")
            self._threads = [self._threads[0], *(old for old in self._threads[1:] if old.is_alive()), thread]
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = self._connected()
            except OSError:
                return  # the server is not reachable: the client sees a closed connection
            with server:
                ends = {client, server}
                self._open |= ends
                try:
                    if not self._over.is_set():  # otherwise the connection would never be closed
                        self.pass_on(client, server)
                except (OSError, CutError):
                    pass  # cut by us or by a side
                finally:
                    self._open -= ends

    def _connected(self) -> socket.socket:
        if not isinstance(self._target, str):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(self._target)
        except BaseException:
            server.close()
            raise
        return server
