"""A disk that can be full: a small tmpfs where the test may mount one, else a limit on the size of files."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conquiet.embedded import ServerBinary

_BLOCK = 64 * 1024


class SmallDisk:
    """Everything of one test is in `folder`. While the disk is full, no file in it can grow."""

    def __init__(self, folder: Path, is_mounted: bool) -> None:
        self.folder = folder
        self.is_mounted = is_mounted
        self._filler = folder / "filler"

    @contextmanager
    def full(self, processes: Callable[[], Iterable[int]]) -> Iterator[None]:
        """Fill the disk. Without a file system of its own, limit the file size of `processes`, which write there."""
        if self.is_mounted:
            self._fill()
            try:
                yield
            finally:
                self._filler.unlink()
            return
        pids = list(processes())
        before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
        largest = max(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, hard))
        try:
            yield
        finally:
            for pid, limits in before.items():
                if os.path.exists(f"/proc/{pid}"):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    def _fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            for size in (_BLOCK, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def program(self, binary: ServerBinary) -> Path | ServerBinary:
        """A server program that gets the limit as an error, not as a signal that ends it."""
        if self.is_mounted:
            return binary
        script = self.folder / "server"
        script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {binary.program} \"$@\"\n")
        script.chmod(0o755)
        return script


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "small", str(folder)]
    try:
        is_mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield SmallDisk(folder, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
