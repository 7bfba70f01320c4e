"""A TCP proxy in front of a server that can strike at one command: lose it, lose its reply, act before it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from types import TracebackType

from conquiet.embedded import RedisServer
from conquiet.verify.proxy import Relay
from tests.addresses import at_port


class Gate(Relay):
    """Forwards everything until a strike is prepared; each strike happens once, at the `nth` such command.

    `lose`             the command never reaches the server, and the connection is cut
    `lose_reply_to`    the server has executed the command, and the connection is cut before the reply is forwarded
    `cut_after_reply_to`   the first reply is forwarded, and the connection is cut before another one is
    `before`           an action runs first, then the command is forwarded
    """

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.port)
        self._server = server
        self._strikes: list[_Strike] = []

    @property
    def url(self) -> str:
        return at_port(self._server.url, self.port)

    def lose(self, command: str, nth: int = 1) -> None:
        self._strikes.append(_Strike(command, nth, "lose"))

    def lose_reply_to(self, command: str, nth: int = 1) -> None:
        self._strikes.append(_Strike(command, nth, "lose reply"))

    def cut_after_reply_to(self, command: str, nth: int = 1) -> None:
        self._strikes.append(_Strike(command, nth, "cut after reply"))

    def before(self, command: str, action: Callable[[], object]) -> None:
        self._strikes.append(_Strike(command, 1, "act", action))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        assert not self._strikes, f"prepared, but the command never came: {self._strikes}"

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        reply_is_lost = cut_after_reply = False
        while True:
            for end in select.select((client, server), (), ())[0]:
                data = end.recv(1 << 16)
                if not data or (end is server and reply_is_lost):
                    return
                strike = self._strike_at(data) if end is client else None
                if strike is not None:
                    if strike.kind == "lose":
                        return
                    reply_is_lost = strike.kind == "lose reply"
                    cut_after_reply = strike.kind == "cut after reply"
                    strike.action()
                (server if end is client else client).sendall(data)
                if end is server and cut_after_reply:
                    return

    def _strike_at(self, data: bytes) -> _Strike | None:
        """Clients send a command and wait: a chunk that contains a command begins with it."""
        for strike in self._strikes:
            if strike.command in data[:64]:
                strike.still_to_come -= 1
                if strike.still_to_come == 0:
                    self._strikes.remove(strike)
                    return strike
        return None


class _Strike:
    def __init__(
        self, command: str, nth: int, kind: str, action: Callable[[], object] = lambda: None
    ) -> None:
        self.command = f"\r\n{command}\r\n".encode()
        self.still_to_come = nth
        self.kind = kind
        self.action = action

    def __repr__(self) -> str:
        return f"{self.kind} {self.command!r}"
