"""A disk for SQLite that forgets what was not synced, and a store on it whose power is cut again and again.

SQLite's own file system layer reports every sync (xSync of the default VFS, hooked with ctypes). A power cut leaves of
a file its content at the end of its last sync, plus whatever part of later writes reached the disk by chance: every
other cut keeps such a part of the WAL, torn at any byte.

    python -m tests.faults.sqlite_disk '{"folder": …, "synchronous": "FULL", "cuts": 100, "seed": 1}'

Each cut leaves a folder: the files as they would be found, and acknowledged.json with what callers were told.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import json
import os
import random
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from conquiet.flow import run
from conquiet.jobs import JobStore, open_store

_POINTERS = 19  # in sqlite3_io_methods, including its version
_X_SYNC = 5
# SQLite keeps the address of the name for as long as the file is open: it must be SQLite's own, not that of a copy.
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    ]


class Disk:
    """Keeps the synced state of `live` (a database file) in the folder `safe`."""

    def __init__(self, live: Path, safe: Path) -> None:
        self._live = live
        self._safe = safe
        self._paths: dict[int, Path] = {}  # of SQLite's open files
        self._methods: dict[int, Any] = {}  # copies of its method tables, by the address of the original
        library = ctypes.CDLL(_sqlite3.__file__)
        self.is_measured = hasattr(library, "sqlite3_vfs_find")
        if not self.is_measured:
            return
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
        self._plain_open = _Open(vfs.open)
        self._our_open, self._our_sync = (
            _Open(self._open),
            _Sync(self._sync),
        )  # keeps a reference: SQLite holds their addresses
        vfs.open = ctypes.cast(self._our_open, ctypes.c_void_p).value

    def _open(self, vfs: int, name: int | None, file: int, flags: int, given: int) -> int:
        status: int = self._plain_open(vfs, name, file, flags, given)
        if status == 0 and name is not None:
            self._paths[file] = Path(os.fsdecode(ctypes.string_at(name)))
            slot = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
            original = slot[0] or 0
            if original not in self._methods:
                table = (ctypes.c_void_p * _POINTERS)()
                ctypes.memmove(table, original, ctypes.sizeof(table))
                plain = _Sync(table[_X_SYNC] or 0)
                table[_X_SYNC] = ctypes.cast(self._our_sync, ctypes.c_void_p).value
                self._methods[original] = (table, plain)
                self._plain_sync = plain
            slot[0] = ctypes.cast(self._methods[original][0], ctypes.c_void_p).value
        return status

    def _sync(self, file: int, flags: int) -> int:
        status: int = self._plain_sync(file, flags)
        path = self._paths[file]
        if status == 0 and path.exists():
            shutil.copyfile(path, self._safe / path.name)
        return status

    def assume(self, synchronous: str) -> None:
        """If this Python hides its SQLite: assume that it syncs a commit under FULL only, as documented."""
        if not self.is_measured and synchronous == "FULL":
            self._keep_all()

    def _keep_all(self) -> None:
        for path in self._live.parent.glob(f"{self._live.name}*"):
            if not path.name.endswith("-shm"):
                shutil.copyfile(path, self._safe / path.name)

    def begin(self) -> None:
        """Files that SQLite has removed so far (a journal from before the WAL) are gone from the disk too."""
        for path in self._safe.iterdir():
            if not (self._live.parent / path.name).exists():
                path.unlink()
        if not self.is_measured:
            self._keep_all()

    def cut(self, left: Path, chance: random.Random | None) -> None:
        """The files as a power cut would leave them now; with `chance`, plus a torn part of the WAL."""
        shutil.copytree(self._safe, left)
        wal, written = left / f"{self._live.name}-wal", Path(f"{self._live}-wal")
        if chance is not None and wal.exists() and written.exists():
            new, old = written.read_bytes(), wal.read_bytes()
            torn = chance.randint(0, len(new))
            wal.write_bytes(new[:torn] + old[torn:])


class Work:
    """Jobs enqueued, and handled with an effect in the same transaction; everything that was answered is recorded."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._numbers = 0
        self.enqueued: list[str] = []
        self.acked: list[str] = []
        self.effects: list[str] = []

    def step(self) -> None:
        self._numbers += 1
        self.enqueued.append(self._store.enqueue("q", {"n": self._numbers}, id=f"job-{self._numbers}").id)
        (job,) = self._store.claim("q", lease_ttl=3600.0)
        if self._numbers % 3 == 0:
            self._store.ack(job)
        else:  # what a worker does for a handler with a transaction
            backend = self._store.operations.backend
            connection = run(backend.begin())
            connection.execute("INSERT INTO effects VALUES (?)", (job.id,))
            self._store.ack(job, connection=connection)
            run(backend.commit(connection))
            self.effects.append(job.id)
        self.acked.append(job.id)


def main(folder: str, synchronous: str, cuts: int, seed: int) -> None:
    base, chance = Path(folder), random.Random(seed)
    safe, file = base / "safe", base / "jobs.db"
    safe.mkdir()
    disk = Disk(file, safe)
    with open_store(f"sqlite:///{file}?synchronous={synchronous}") as store:
        effects = sqlite3.connect(file)
        effects.execute("CREATE TABLE effects (job_id TEXT)")
        effects.commit()
        effects.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # both start from the same disk
        disk.begin()
        work = Work(store)
        for number in range(cuts):
            for _ in range(chance.randint(1, 12)):
                work.step()
                disk.assume(synchronous)
            left = base / f"cut-{number}"
            disk.cut(left, chance if number % 2 else None)
            told = {
                "enqueued": work.enqueued,
                "acked": work.acked,
                "effects": work.effects,
                "is_measured": disk.is_measured,
            }
            (left / "acknowledged.json").write_text(json.dumps(told))
        effects.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
