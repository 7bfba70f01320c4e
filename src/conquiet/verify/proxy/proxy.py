"""A TCP proxy that knows where commands and replies begin and end, and interrupts one at a chosen byte.

    with Proxy(server.port, RedisFraming) as proxy:
        strike = proxy.strike("XACK", "reply", part=0.0)   # executed, but no byte of its reply comes back

`part` is how much of it passes first: of a command of 40 bytes, 0.5 lets 20 through. Then the fate is one of

    cut     both connections are closed. With 1.0 of a command it is sent entirely, and its reply is lost
    slow    the rest passes at `rate` bytes a second; afterwards the connection works normally
    hole    nothing passes in either direction, without an error, until `heal()` closes both connections
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from conquiet.verify.proxy.framing import Framing
from conquiet.verify.proxy.relay import Address, CutError, Relay

__all__ = ["Fate", "Proxy", "Side", "Strike"]

Side = Literal["command", "reply"]
Fate = Literal["cut", "slow", "hole"]


@dataclass(eq=False)
class Strike:
    """A fault that happens once, at the next command that contains `word`, or to its reply; then `done` is set."""

    word: str
    side: Side
    part: float
    fate: Fate = "cut"
    rate: float = 1.0
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.fate} at {self.part:.0%} of the {self.side} {self.word}"

    def length(self, data: bytes) -> int:
        """How many bytes pass. A reply never passes entirely: then nothing would be lost."""
        passed = round(len(data) * self.part)
        return min(passed, len(data) - 1) if self.side == "reply" else passed


class Proxy(Relay):
    """A proxy in front of the server at `target`, until its block ends. Each strike happens once, in any order."""

    def __init__(self, target: Address, framing: Callable[[], Framing]) -> None:
        super().__init__(target)
        self._framing = framing
        self._lock = threading.Lock()
        self._strikes: list[Strike] = []
        self._healed = threading.Event()

    def strike(
        self, word: str, side: Side, part: float = 0.0, fate: Fate = "cut", rate: float = 1.0
    ) -> Strike:
        """Strike at the next command that contains `word`; `done` is set when it has happened (for `slow`: begun)."""
        made = Strike(word, side, part, fate, rate)
        with self._lock:
            self._strikes.append(made)
        return made

    def withdraw(self, strike: Strike) -> bool:
        """Remove a strike that has not begun; returns whether that was possible."""
        with self._lock:
            if strike in self._strikes:
                self._strikes.remove(strike)
                return True
        return False

    def heal(self) -> None:
        """Close the connections in a hole, as when TCP gives up; what was swallowed stays lost."""
        self._healed.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._healed.set()
        super().__exit__(kind, error, trace)

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        _Connection(client, server, self._framing(), self).run()

    def take(self, label: str) -> Strike | None:
        """The strike that hits this command, if any."""
        with self._lock:
            for strike in self._strikes:
                if strike.word in label:
                    self._strikes.remove(strike)
                    return strike
        return None

    def swallow(self) -> None:
        self._healed.wait()
        raise CutError

    def pause(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise CutError


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket, framing: Framing, proxy: Proxy) -> None:
        self._client = client
        self._server = server
        self._framing = framing
        self._proxy = proxy
        self._answers: deque[Strike | None] = deque()  # one for each unanswered command
        self._held = b""  # the reply that will be struck, as received so far

    def run(self) -> None:
        while True:
            for end in select.select((self._client, self._server), (), ())[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                if end is self._client:
                    self._pass_commands(data)
                else:
                    self._pass_replies(data)

    def _pass_commands(self, data: bytes) -> None:
        for command in self._framing.commands(data):
            strike = self._proxy.take(command.label) if command.answered else None
            if command.answered:
                self._answers.append(strike if strike is not None and strike.side == "reply" else None)
            if strike is not None and strike.side == "command":
                self._hit(strike, command.data, self._server)
            else:
                self._server.sendall(command.data)

    def _pass_replies(self, data: bytes) -> None:
        for piece, is_last in self._framing.replies(data):
            strike = self._answers[0] if self._answers else None
            if strike is None:
                self._client.sendall(piece)
            else:
                self._held += piece
                if is_last:  # the command was executed entirely
                    reply, self._held = self._held, b""
                    self._hit(strike, reply, self._client)
            if is_last and self._answers:
                self._answers.popleft()

    def _hit(self, strike: Strike, data: bytes, to: socket.socket) -> None:
        passed = strike.length(data)
        to.sendall(data[:passed])
        if strike.fate == "cut":
            # Closed before `done` is set: a test that waits for the strike finds the connection closed.
            for end in (self._client, self._server):
                end.shutdown(socket.SHUT_RDWR)
            strike.done.set()
            raise CutError
        strike.done.set()
        if strike.fate == "hole":
            self._proxy.swallow()
        began = time.monotonic()
        for number, position in enumerate(range(passed, len(data)), 1):
            self._proxy.pause(max(0.0, began + number / strike.rate - time.monotonic()))
            to.sendall(data[position : position + 1])
