"""An unfit server: Redis behind a relay that answers for it and drops commands."""

from __future__ import annotations

import select
import socket

from conquiet.embedded import RedisServer
from conquiet.verify.proxy import RedisFraming, Relay
from tests.addresses import at_port


class Liar(Relay):
    """Answers every nth command of a name as Redis would, and does not forward it."""

    def __init__(self, server: RedisServer, command: str, nth: int = 1) -> None:
        super().__init__(server.port)
        self._server = server
        self._command = command
        self._nth = nth
        self._seen = 0

    @property
    def url(self) -> str:
        return at_port(self._server.url, self.port)

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        framing = RedisFraming()
        while True:
            for end in select.select((client, server), (), ())[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                if end is server:
                    client.sendall(data)
                    continue
                for command in framing.commands(data):
                    if command.label.startswith(f"{self._command} ") and self._is_turn():
                        client.sendall(self._answer())
                    else:
                        server.sendall(command.data)

    def _is_turn(self) -> bool:
        self._seen += 1
        return self._seen % self._nth == 0

    def _answer(self) -> bytes:
        if self._command == "XACK":
            return b":1\r\n"
        entry_id = b"%d-1" % self._seen
        return b"$%d\r\n%b\r\n" % (len(entry_id), entry_id)
