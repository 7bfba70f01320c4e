"""A private PostgreSQL server."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from conquiet.embedded.account import Account, account_for
from conquiet.embedded.binaries import ServerBinary, find_postgres
from conquiet.embedded.ports import LOOPBACK
from conquiet.embedded.server import PrivateServer
from conquiet.errors import MissingDependencyError

__all__ = ["PostgresServer"]

SettingValue = str | int | float | bool

_USER = "postgres"
_OURS = {
    "config_file", "data_directory", "dynamic_shared_memory_type", "external_pid_file", "fsync", "hba_file",
    "listen_addresses", "logging_collector", "port", "unix_socket_directories",
}  # fmt: skip
_PROTOCOL_3 = 196_608


class PostgresServer(PrivateServer):
    """A private PostgreSQL (14 or newer) on a loopback port, with a random password.

    With `fsync` (the default) a commit is as durable as in production. Without it the server is faster, and the last
    commits before a `kill` may be lost.
    """

    # Fast shutdown: SIGTERM would wait for every client to disconnect.
    _STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGINT
    # After a kill -9 the next start may be refused until the kernel has removed the last process.
    _PASSING: ClassVar[tuple[str, ...]] = (
        *PrivateServer._PASSING,
        "pre-existing shared memory block",
        'lock file "postmaster.pid" already exists',
    )

    def __init__(
        self,
        *,
        fsync: bool = True,
        settings: Mapping[str, SettingValue] | None = None,
        binary: ServerBinary | str | Path | None = None,
        base_folder: str | Path | None = None,
        ready_timeout: float = 60.0,
    ) -> None:
        given = {name.lower(): value for name, value in (settings or {}).items()}
        if refused := sorted(_OURS & given.keys()):
            raise ValueError(f"settings may not set {', '.join(refused)}: a private server sets it itself")
        self._settings = [_line(name, value) for name, value in _with_our_own(given, fsync).items()]
        self._password = secrets.token_urlsafe(24)
        super().__init__(find_postgres(binary), base_folder, ready_timeout)

    @property
    def dsn(self) -> str:
        """The URL of the database `postgres`, password included: for clients, not for logs."""
        return self._dsn_of("postgres")

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database and return its DSN."""
        self._execute(
            "CREATE DATABASE {}" + (" TEMPLATE {}" if template else ""), name, *filter(None, [template])
        )
        return self._dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and disconnect its clients."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _dsn_of(self, database: str) -> str:
        return f"postgresql://{_USER}:{self._password}@{self.host}:{self.port}/{quote(database, safe='')}"

    def _execute(self, statement: str, *names: str) -> None:
        try:
            import psycopg
            from psycopg import sql
        except ImportError:
            raise MissingDependencyError(
                'creating a database needs psycopg; run: pip install "conquiet[postgres]"'
            ) from None
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _choose_account(self, base_folder: Path) -> Account:
        return account_for(self.binary.program, base_folder)

    def _prepare(self) -> None:
        secret = self.folder / "password"
        try:
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(self._password + "\n")
            self._account.take_over(secret)
            self._run_once(
                [
                    str(self.binary.program.parent / "initdb"),
                    f"--pgdata={self._data}",
                    f"--username={_USER}",
                    f"--pwfile={secret}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    # Only the creation of the empty cluster is not synced; the server syncs normally.
                    "--no-sync",
                    "--no-instructions",
                ]
            )
        finally:
            secret.unlink(missing_ok=True)
        with open(self._data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(self._settings)

    def _command(self) -> list[str]:
        return [str(self.binary.program), "-D", str(self._data), "-p", str(self.port)]

    def _environment(self) -> dict[str, str]:
        # The user's PGDATA, PGPORT, PGOPTIONS… refer to another server.
        return {name: value for name, value in super()._environment().items() if not name.startswith("PG")}

    def _answers(self, pid: int) -> bool:
        # The lock file proves that the server is ours, a connection that it accepts connections.
        try:
            lock = (self._data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        if len(lock) < 8 or lock[0] != str(pid) or lock[7].strip() != "ready":
            return False
        hello = struct.pack("!i", _PROTOCOL_3) + f"user\0{_USER}\0database\0postgres\0\0".encode()
        with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
            connection.sendall(struct.pack("!i", len(hello) + 4) + hello)
            return (
                connection.recv(1) == b"R"
            )  # a request for authentication; "E" means that it is still starting up

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def _with_our_own(given: Mapping[str, SettingValue], fsync: bool) -> dict[str, SettingValue]:
    quick: dict[str, SettingValue] = {"full_page_writes": False, "synchronous_commit": False}
    return {
        **({} if fsync else quick),
        **given,
        "fsync": fsync,
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",
        "logging_collector": False,
        # Kept in the data folder, so that a kill -9 leaves nothing in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
    }


def _line(name: str, value: SettingValue) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_$.]*", name):
        raise ValueError(f"{name!r} is not the name of a PostgreSQL setting")
    if isinstance(value, bool):
        value = "on" if value else "off"
    text = str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"the PostgreSQL setting {name} contains a line break or NUL")
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"{name} = '{escaped}'\n"
