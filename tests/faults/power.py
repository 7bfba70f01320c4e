"""Simulated power cuts on real servers: the log is cut back to what is known to be synced.

A kill -9 alone loses nothing that the kernel already has. So the server is frozen and killed, and everything in its log
file after the last sync is removed before it starts again: the worst that a power cut may leave.

PostgreSQL   the write-ahead log after `pg_current_wal_flush_lsn()`, asked after the last answer, is zeroed. Nothing but
             the log is written meanwhile: no checkpoint, no background writer.
Redis        the append-only file is truncated to what the kernel has written: it counts the dirty pages of a file
             (cachestat). The server is not asked: Valkey 9.1 answers WAITAOF too early under everysec.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Any

import psycopg

from conquiet.embedded import PostgresServer, RedisServer

_SEGMENT = 16 * 1024 * 1024
_PAGE = mmap.PAGESIZE
_CACHESTAT = 451  # the system call's number, the same on every architecture
QUIET: dict[str, str | int | float] = {  # for PostgreSQL: only the log is written
    "autovacuum": False,
    "bgwriter_lru_maxpages": 0,
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
}


def flushed(connection: psycopg.Connection[Any]) -> int:
    """The position up to which PostgreSQL's log is synced."""
    row = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def cut_postgres(server: PostgresServer, position: int) -> int:
    """Cut the power, end the log at `position`, start the server again. Returns how many bytes of the log were lost."""
    server.pause()
    server.kill()
    segment, offset = divmod(position, _SEGMENT)
    lost = 0
    for path in (server.folder / "data" / "pg_wal").iterdir():
        if len(path.name) != 24:
            continue
        number = int(path.name[8:16], 16) * 256 + int(path.name[16:], 16)
        if number >= segment:
            lost += _zero(path, offset if number == segment else 0)
    server.start()
    return lost


def _zero(path: Path, start: int) -> int:
    """Zero the file from `start` on. Returns how many of these bytes were not zero before."""
    with path.open("r+b") as file:
        file.seek(start)
        tail = file.read()
        written = len(tail.rstrip(b"\0"))
        if written:
            file.seek(start)
            file.write(bytes(written))
    return written


class _Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Pages(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


def unsynced_pages(path: Path) -> int | None:
    """How many pages of a file the kernel still has to write (Linux 6.5 and newer; None before)."""
    pages = _Pages()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        failed = libc.syscall(_CACHESTAT, file.fileno(), ctypes.byref(_Range(0, 0)), ctypes.byref(pages), 0)
    return None if failed else int(pages.dirty + pages.writeback)


class RedisPower:
    """A Redis whose power can be cut. All commands must be answered by then, and there must be no other writer."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._sizes: list[tuple[float, int]] = []
        self.is_measured = _kernel_tells(server.folder)

    @property
    def _log(self) -> Path:
        folder = self._server.folder / "data" / "appendonlydir"
        return max(folder.glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))

    def answered(self) -> None:
        """Call this after every answer. Without cachestat, what was answered a second ago is taken as synced."""
        self._sizes.append((time.monotonic(), self._log.stat().st_size))

    def cut(self, fsync: str) -> int:
        """Cut the log back to what was synced and start the server again. Returns how many bytes were lost."""
        self._server.pause()
        log = self._log
        size, unsynced = log.stat().st_size, unsynced_pages(log)
        if not self.is_measured or unsynced is None:
            second_ago = [known for at, known in self._sizes if at < time.monotonic() - 1.0]
            synced = size if fsync == "always" else max(second_ago, default=0)
        else:
            # The file only grows, so the unwritten part is its end; a partly filled page is lost as a whole.
            synced = size if unsynced == 0 else max(0, -(-size // _PAGE) - unsynced) * _PAGE
        self._server.kill()
        os.truncate(log, synced)
        self._server.start()
        self._sizes = []
        return size - synced


def _kernel_tells(folder: Path) -> bool:
    """Not every file system reports it: one in memory never has anything left to write."""
    probe = folder / "probe"
    probe.write_bytes(b"not synced")
    try:
        return bool(unsynced_pages(probe))
    finally:
        probe.unlink()
