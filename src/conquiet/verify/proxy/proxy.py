"""A TCP proxy that knows where commands and replies begin and end, and strikes in the middle of one.

    with Proxy(server.port, RedisFraming) as proxy:
        strike = proxy.strike("XACK", "reply", part=0.0)   # executed; of its reply not a byte comes back

`part` is how much of it passes first: of a command of 40 bytes, 0.5 lets 20 through. Then comes

    cut     both connections are closed. 1.0 of a command: it was sent whole, and nobody waits for the reply
    slow    the rest passes at `rate` bytes a second, and all is well again
    hole    nothing passes any more in either direction, and nobody is told, until `heal()` closes both
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
    """What happens once, at the next command with `word` in it, or to its reply; `done` says that it has."""

    word: str
    side: Side
    part: float
    fate: Fate = "cut"
    rate: float = 1.0
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.fate} at {self.part:.0%} of the {self.side} {self.word}"

    def length(self, data: bytes) -> int:
        """How many bytes pass. A reply never passes whole: then nothing would have been lost."""
        passed = round(len(data) * self.part)
        return min(passed, len(data) - 1) if self.side == "reply" else passed


class Proxy(Relay):
    """In front of the server at `target`, for as long as its block lasts. Strikes are made one each, in any order."""

    def __init__(self, target: Address, framing: Callable[[], Framing]) -> None:
        super().__init__(target)
        self._framing = framing
        self._lock = threading.Lock()
        self._strikes: list[Strike] = []
        self._healed = threading.Event()

    def strike(
        self, word: str, side: Side, part: float = 0.0, fate: Fate = "cut", rate: float = 1.0
    ) -> Strike:
        """At the next command with `word` in it; `done` is set when it has happened (for `slow`: begun)."""
        made = Strike(word, side, part, fate, rate)
        with self._lock:
            self._strikes.append(made)
        return made

    def withdraw(self, strike: Strike) -> bool:
        """Whether it could be taken back: it has not begun."""
        with self._lock:
            if strike in self._strikes:
                self._strikes.remove(strike)
                return True
        return False

    def heal(self) -> None:
        """What was swallowed stays so, and its connections are closed, as when TCP gives up at last."""
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
        """The strike that this command is hit by."""
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
        self._answers: deque[Strike | None] = deque()  # one for each command that is not answered yet
        self._held = b""  # of the reply that will be struck

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
                if is_last:  # it was executed, all of it
                    reply, self._held = self._held, b""
                    self._hit(strike, reply, self._client)
            if is_last and self._answers:
                self._answers.popleft()

    def _hit(self, strike: Strike, data: bytes, to: socket.socket) -> None:
        passed = strike.length(data)
        to.sendall(data[:passed])
        if strike.fate == "cut":
            # Closed before anybody is told: whoever has waited for this strike finds the connection gone.
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
