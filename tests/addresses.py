"""Addresses of servers, changed to lead through something else."""

from __future__ import annotations

import re
import select
import socket

from conquiet.embedded import RedisServer
from conquiet.verify.proxy import Relay


def at_port(url: str, port: int) -> str:
    """`url` with the same password, database and options, at another port: a proxy's in front of the server."""
    changed, count = re.subn(r"(?<=\w):\d+(?=/)", f":{port}", url)
    assert count == 1, url
    return changed


class Address(Relay):
    """An address that is given to another server, as DNS names, floating addresses and services of Kubernetes are."""

    def move_to(self, server: RedisServer) -> None:
        self._target = (server.host, server.port)

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            for end in select.select((client, server), (), ())[0]:
                if not (data := end.recv(1 << 16)):
                    return
                (server if end is client else client).sendall(data)
