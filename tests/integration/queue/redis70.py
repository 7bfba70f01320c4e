"""A relay that lets a newer server answer a blocked read as Redis 7.0 does, whose binary no package carries."""

from __future__ import annotations

import select
import socket

from conquiet.verify.proxy import Relay

# Measured on Redis 7.0.15, for a stream that is deleted, renamed, replaced by another type, expired or flushed.
SAID_BY_70 = b"-UNBLOCKED the stream key no longer exists\r\n"


class Redis70(Relay):
    """Since 7.2 the read is executed again, and says NOGROUP; `rewritten` counts these answers."""

    rewritten = 0

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            for end in select.select((client, server), (), ())[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                if end is server and data.startswith(b"-NOGROUP "):
                    data, self.rewritten = SAID_BY_70, self.rewritten + 1
                (server if end is client else client).sendall(data)
