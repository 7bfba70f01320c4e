"""A private Redis or Valkey server."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from io import BufferedRWPair
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote

from conquiet.embedded.binaries import ServerBinary, find_redis
from conquiet.embedded.server import PrivateServer

__all__ = ["RedisServer"]

AppendFsync = Literal["always", "everysec", "no"]
ConfigValue = str | int | bool | Sequence[str]

# Where the server runs and what it writes is fixed; everything else may be set.
_OURS = {
    "appendfsync", "appendonly", "bind", "daemonize", "dir", "include", "logfile", "pidfile", "port",
    "supervised", "tls-port", "unixsocket",
}  # fmt: skip


class RedisServer(PrivateServer):
    """A private Redis (7 or newer) or Valkey server, with a random password (or `requirepass` of `config`).

    `restart` always keeps the data. `kill` keeps the contents of the append-only file: nothing without `appendonly`,
    everything that was answered with `appendfsync="always"`.
    """

    def __init__(
        self,
        *,
        appendonly: bool = False,
        appendfsync: AppendFsync = "everysec",
        config: Mapping[str, ConfigValue] | None = None,
        binary: ServerBinary | str | Path | None = None,
        base_folder: str | Path | None = None,
        ready_timeout: float = 30.0,
    ) -> None:
        if appendfsync not in get_args(AppendFsync):
            raise ValueError(f"appendfsync is one of {', '.join(get_args(AppendFsync))}, not {appendfsync!r}")
        self._config = {name.lower(): value for name, value in (config or {}).items()}
        if refused := sorted(_OURS & self._config.keys()):
            raise ValueError(f"config may not set {', '.join(refused)}: a private server sets it itself")
        # Every user of this machine can reach the port. With access rules of its own, the caller has decided who may.
        if not self._config.keys() & {"requirepass", "aclfile", "user"}:
            self._config["requirepass"] = secrets.token_urlsafe(18)
        self._appendonly, self._appendfsync = appendonly, appendfsync
        super().__init__(find_redis(binary), base_folder, ready_timeout)

    @property
    def url(self) -> str:
        """`redis://:<password>@127.0.0.1:<port>/0`."""
        secret = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{secret}{self.host}:{self.port}/0"

    @property
    def _password(self) -> str:
        return str(self._config.get("requirepass", ""))

    def _prepare(self) -> None:
        os.mkdir(self.folder / "data")

    def _command(self) -> list[str]:
        # A file, because every user of the machine can read the arguments of a process.
        settings: dict[str, ConfigValue] = {
            "save": "",
            # On SIGTERM it saves even without save points: `restart` relies on that.
            "shutdown-on-sigterm": "save",
            **self._config,
            "bind": self.host,
            "port": self.port,
            "dir": str(self.folder / "data"),
            "daemonize": False,
            "logfile": "",
            "appendonly": self._appendonly,
            "appendfsync": self._appendfsync,
        }
        path = self.folder / "server.conf"
        path.write_text("".join(_line(name, value) for name, value in settings.items()), encoding="utf-8")
        return [str(self.binary.program), str(path)]

    def _answers(self, pid: int) -> bool:
        with (
            socket.create_connection((self.host, self.port), timeout=1.0) as connection,
            connection.makefile("rwb") as wire,
        ):
            if self._password:
                _ask(wire, "AUTH", self._password)
            ping = _ask(wire, "PING")
            if ping.startswith((b"-NOAUTH", b"-NOPERM")):
                # With its own access rules we cannot ask for more; without them it is not our server.
                return bool(self._config.keys() & {"aclfile", "user"})
            if ping != b"+PONG":
                return False  # -LOADING: it is reading its data
            return f"process_id:{pid}".encode() in _ask(wire, "INFO", "server").split()


def _line(name: str, value: ConfigValue) -> str:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    words = [str(value)] if isinstance(value, str | int) else list(value)
    return " ".join([name, *map(_quoted, words)]) + "\n"


def _quoted(word: str) -> str:
    """`word` in double quotes, as in a Redis configuration file: unusual characters as \\xNN."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f'"{plain}"'


def _ask(wire: BufferedRWPair, *words: str) -> bytes:
    """One command and its reply; implements only as much of the protocol as is needed here."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    wire.write(b"".join(parts))
    wire.flush()
    reply = wire.readline().rstrip(b"\r\n")
    if not reply:
        raise ConnectionError("the server closed the connection")
    if not reply.startswith(b"$"):
        return reply
    return wire.read(int(reply[1:]) + 2)[:-2]
