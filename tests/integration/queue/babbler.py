"""What listens on a port and is no Redis: it answers with whatever it is told to."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["Babbler"]


class Babbler:
    """Answers a command with `answer` and hangs up; before, unless it is `rude`, a greeting and a new group with OK."""

    def __init__(self, answer: bytes = b"", *, rude: bool = False) -> None:
        self.answer = answer
        self._rude = rude
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0?protocol=2&socket_timeout=5"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:  # the end
                return
            with line:
                try:
                    while command := line.recv(65_536):
                        greetings = command.count(b"SETINFO") + command.count(b"XGROUP")
                        if greetings and not self._rude:
                            line.sendall(b"+OK\r\n" * greetings)
                            continue
                        line.sendall(self.answer)
                        break
                except OSError:
                    pass  # the client hung up first
