"""A server that is not Redis: it sends whatever answer a test sets."""

from __future__ import annotations

import socket

from tests.answering import Answering

__all__ = ["Babbler"]


class Babbler(Answering):
    """Answers a command with `answer` and closes; unless `rude`, it answers greeting and XGROUP with OK first."""

    def __init__(self, answer: bytes = b"", *, rude: bool = False) -> None:
        super().__init__()
        self.answer = answer
        self._rude = rude

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?protocol=2&socket_timeout=5"

    def serve(self, line: socket.socket) -> None:
        while command := line.recv(65_536):
            greetings = command.count(b"SETINFO") + command.count(b"XGROUP")
            if not greetings or self._rude:
                line.sendall(self.answer)
                return
            line.sendall(b"+OK\r\n" * greetings)
