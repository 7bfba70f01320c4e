"""A pooler in transaction mode: the real PgBouncer where it is found, otherwise one that does the same."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from conquiet.embedded.ports import free_port
from tests.integration.jobs.background import until

SERVERS = 3
_PARAMETERS = (
    b"server_version",
    b"client_encoding",
    b"standard_conforming_strings",
    b"TimeZone",
    b"DateStyle",
)


def pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def real_pooler(dsn: str, folder: Path) -> Iterator[str]:
    where, port = conninfo_to_dict(dsn), free_port()
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text(f'"{where["user"]}" "{where["password"]}"\n')
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={where['port']} user={where['user']} password={where['password']}\n"
        f"[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=any\n"
        f"auth_file={users}\npool_mode=transaction\ndefault_pool_size={SERVERS}\nserver_round_robin=1\n"
    )
    account = ["-u", "nobody"] if os.geteuid() == 0 else []
    for path in (folder, *folder.parents):
        if account and path.stat().st_uid == os.geteuid() and "pytest" in path.name:
            path.chmod(0o755)
    process = subprocess.Popen([str(pgbouncer()), "-q", *account, settings], stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port))
        yield f"postgresql://{where['user']}:{where['password']}@127.0.0.1:{port}/{where['dbname']}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def own_pooler(dsn: str) -> Iterator[str]:
    """Gives each transaction the server connection that was not used for longest."""
    with ExitStack() as stack:
        servers: queue.Queue[socket.socket] = queue.Queue()
        for _ in range(SERVERS):
            connected = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            line = stack.enter_context(socket.socket(fileno=os.dup(connected.fileno())))
            line.setblocking(True)
            servers.put(line)
        said = [(name, connected.pgconn.parameter_status(name) or b"") for name in _PARAMETERS]
        hello = b"".join(_message(b"S", name + b"\0" + value + b"\0") for name, value in said)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def accept() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=_serve, args=(client, servers, hello), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        where = conninfo_to_dict(dsn)
        yield f"postgresql://{where['user']}:x@127.0.0.1:{listening.getsockname()[1]}/{where['dbname']}"
        listening.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, servers: queue.Queue[socket.socket], hello: bytes) -> None:
    with client:
        while (
            struct.unpack("!i", _exactly(client, struct.unpack("!i", _exactly(client, 4))[0] - 4)[:4])[0]
            != 196_608
        ):
            client.sendall(b"N")  # no TLS
        key = _message(b"K", struct.pack("!ii", 1, 1))
        client.sendall(_message(b"R", struct.pack("!i", 0)) + hello + key + _message(b"Z", b"I"))
        server: socket.socket | None = None
        while (kind := client.recv(1)) not in (b"", b"X"):
            body = _exactly(client, struct.unpack("!i", _exactly(client, 4))[0] - 4)
            server = server or servers.get(timeout=60)
            server.sendall(_message(kind, body))
            while kind in (b"Q", b"S"):
                said = _exactly(server, 1)
                answer = _exactly(server, struct.unpack("!i", _exactly(server, 4))[0] - 4)
                client.sendall(_message(said, answer))
                if said == b"Z":
                    if answer == b"I":
                        servers.put(server)
                        server = None
                    break


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _exactly(line: socket.socket, number: int) -> bytes:
    found = b""
    while len(found) < number:
        some = line.recv(number - len(found))
        if not some:
            raise ConnectionError("closed")
        found += some
    return found
