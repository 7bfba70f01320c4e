"""A TCP server that answers as a test wants it to."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["Answering"]


class Answering:
    """Serves one connection after the other until its block ends. A subclass implements `serve`."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)

    def serve(self, line: socket.socket) -> None:
        """Handle one connection, which is closed when this returns. The peer may disconnect at any time."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:  # the block has ended
                return
            with line:
                try:
                    self.serve(line)
                except OSError:
                    pass  # the peer has disconnected
