"""The commands that reach the server, by MONITOR."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self
from uuid import uuid4

import redis

from conquiet.queue.wire import route_to

# The commands of a client's handshake belong to the client, not to the queue.
_CONNECTING = ("HELLO", "AUTH", "CLIENT", "SELECT")
_LINE = re.compile(r"^[\d.]+ \[\d+ (?P<source>[^\]]*)\] (?P<command>.*)$")
_WORD = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')


class Monitor:
    """Collects commands from the moment it is entered. It needs no waiting time: a marker ends each look."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, protocol=2, socket_timeout=20)
        self._marking = redis.Redis.from_url(url)
        self._ignored: set[str] = set()

    def __enter__(self) -> Self:
        self._connection = route_to(self._client).only.get()  # in every version of redis-py
        self._connection.send_command("MONITOR")
        assert self._connection.read_response() == b"OK"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.disconnect()
        self._client.connection_pool.release(self._connection)
        self._client.close()
        self._marking.close()

    def ignore(self, client: redis.Redis) -> None:
        """Leave out the commands that the test itself sends with this client."""
        self._ignored.add(str(client.client_info()["addr"]))

    def commands(self, *only: str) -> list[tuple[str, ...]]:
        """All commands since the last look (or only those named), each as its words.

        The commands of a script appear as "lua:XADD" and so on. Note that `only` discards the others.
        """
        marker = f"end-{uuid4()}"
        self._marking.echo(marker)
        found = []
        while (words := self._next())[-1] != marker:
            if words[0] not in _CONNECTING and (not only or words[0] in only):
                found.append(words)
        return found

    def names(self) -> list[str]:
        """The commands since the last look, without their arguments."""
        return [words[0] for words in self.commands()]

    def wait_for(self, name: str) -> tuple[str, ...]:
        """The next command of that name; earlier ones are discarded."""
        while (words := self._next())[0] != name:
            pass
        return words

    def _next(self) -> tuple[str, ...]:
        while True:
            line = self._connection.read_response().decode()
            match = _LINE.match(line)
            assert match, line
            if match["source"] not in self._ignored:
                break
        words = [word.replace('\\"', '"').replace("\\\\", "\\") for word in _WORD.findall(match["command"])]
        return ("lua:" * (match["source"] == "lua") + words[0].upper(), *words[1:])
