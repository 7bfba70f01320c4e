"""The guardian: a small process that outlives its owner just long enough to remove one private server.

A Python process that is killed with -9 cannot clean up. So every private server has a guardian, started before the
server, in its own session (Ctrl-C and a killed `make` do not reach it). It waits for its owner to end, for any reason;
then it kills what is left of the server and removes its folder.

It is run by path: `python -I -S guardian.py OWNER_PID FOLDER PROGRAM`. It imports only the standard library. The owner
writes these lines to its standard input:

    group 1234      the server now runs as process group 1234 (0: it is not running)
    done            the owner has removed everything itself

`process.py` uses the same functions to clean up, so that owner and guardian do exactly the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable

# How often to check for a dead owner if the kernel cannot notify us (no pidfd: macOS, Linux before 5.3).
_LOOK_EVERY_MS = 500
_ENDED_STATES = ("Z", "X")
STOPPED_STATES = ("T", "t")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(owner: int, folder: str, program: str) -> None:
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    group = _wait_for_owner(owner)
    if group is not None:
        clear(group, folder, program)


def _wait_for_owner(owner: int) -> int | None:
    """The group that was running when the owner ended, or None if the owner has sent `done`.

    Waiting for the end of the input is not enough: a process forked from the owner holds a copy of the pipe. So the
    owner itself is watched as well.
    """
    poller = select.poll()
    poller.register(0, select.POLLIN)
    wait_ms: int | None = _LOOK_EVERY_MS
    # Without pidfd, or if the owner has already ended, the loop checks getppid.
    with contextlib.suppress(OSError, AttributeError):
        poller.register(os.pidfd_open(owner), select.POLLIN)
        wait_ms = None
    os.set_blocking(0, False)
    said = b""
    while True:
        # Checked before reading, so that the owner's last message is never missed.
        ended = os.getppid() != owner
        while (chunk := _read_some()) is not None and chunk:
            said += chunk
        orders = said.decode().split("\n")[:-1]
        if "done" in orders:
            return None
        if ended or chunk == b"":
            groups = [int(order.split()[1]) for order in orders]
            return groups[-1] if groups else 0
        poller.poll(wait_ms)


def _read_some() -> bytes | None:
    """The available input: b"" at its end, None if there is none yet."""
    try:
        return os.read(0, 4096)
    except BlockingIOError:
        return None


def clear(group: int, folder: str, program: str) -> None:
    """Remove everything: processes, shared memory, folder."""
    try:
        end_processes(group, folder, program)
        release_shared_memory(folder)
    finally:
        remove_folder(folder)


def processes(group: int, folder: str, program: str) -> dict[int, str]:
    """Every living process of one server, with its state letter.

    The process group is not enough: each PostgreSQL backend creates its own session, and after the death of its
    postmaster only its program and its working folder identify it.
    """
    if not os.path.isdir("/proc/self"):
        return _processes_by_ps(group)
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _parent, its_group = file.read().rpartition(b")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if state.decode() not in _ENDED_STATES and (
            (group and int(its_group) == group) or _runs_in(name, folder, program)
        ):
            found[int(name)] = state.decode()
    return found


def _runs_in(pid: str, folder: str, program: str) -> bool:
    try:
        if os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)") != program:
            return False
        return (os.readlink(f"/proc/{pid}/cwd") + "/").startswith(folder + "/")
    except OSError:
        return False  # it has just ended, or belongs to another user


def _processes_by_ps(group: int) -> dict[int, str]:
    """The same without /proc: the group, and all descendants of its leader."""
    import subprocess

    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    rows = [
        (int(pid), int(ppid), int(pgid), stat[0])
        for pid, ppid, pgid, stat in map(str.split, listing.splitlines())
    ]
    family = {group} if group else set()
    while True:
        grown = family | {pid for pid, ppid, pgid, _ in rows if ppid in family or pgid in family}
        if grown == family:
            return {pid: state for pid, _, _, state in rows if pid in family and state not in _ENDED_STATES}
        family = grown


def freeze(group: int, folder: str, program: str, patience: float = 10.0) -> dict[int, str]:
    """Send SIGSTOP until all processes are stopped, and return them. The leader first: it could start another one."""
    deadline = time.monotonic() + patience
    while True:
        living = processes(group, folder, program)
        moving = [pid for pid, state in living.items() if state not in STOPPED_STATES]
        if not moving or time.monotonic() > deadline:
            return living
        for pid in sorted(moving, key=lambda pid: pid != group):
            send(pid, signal.SIGSTOP)
        time.sleep(0.001)


def end_processes(group: int, folder: str, program: str, patience: float = 10.0) -> None:
    """Send SIGKILL until no process of the server is left."""
    # Frozen first: their shared memory can be found only while they exist.
    living = freeze(group, folder, program, patience=1.0)
    named_memory = _named_memory(living)
    deadline = time.monotonic() + patience
    while living:
        for pid in sorted(living, key=lambda pid: pid != group):
            send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(living)} of {program} survive SIGKILL")
        time.sleep(0.002)
        living = processes(group, folder, program)
    for path in named_memory:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _named_memory(pids: Iterable[int]) -> set[str]:
    """The files of initdb in /dev/shm. The server is configured not to use it; initdb cannot be."""
    found = set()
    for pid in pids:
        # The process has ended, or there is no /proc.
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/maps") as file:
                found |= {word for line in file for word in line.split()[5:6]}
            found |= {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    return {path for path in found if path.startswith("/dev/shm/PostgreSQL.")}


def send(pid: int, signal_number: int) -> None:
    # If the process has already ended, there is nothing to do.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def release_shared_memory(folder: str) -> None:
    """Release PostgreSQL's System V segment, which survives a kill -9; the lock file names it."""
    try:
        with open(os.path.join(folder, "data", "postmaster.pid")) as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return
    numbers = lines[6].split() if len(lines) > 6 else []
    if len(numbers) != 2:
        return
    import ctypes

    key, segment = ctypes.c_int(int(numbers[0])), ctypes.c_int(int(numbers[1]))
    libc = ctypes.CDLL(None)
    # Only if the key still belongs to this segment: its number may have been reused.
    if libc.shmget(key, 0, 0) == segment.value:
        libc.shmctl(segment, 0, None)  # 0 is IPC_RMID


def remove_folder(folder: str, patience: float = 5.0) -> None:
    import shutil

    deadline = time.monotonic() + patience
    while os.path.lexists(folder):
        try:
            shutil.rmtree(folder)
        except OSError:
            # A dying process may have added a file meanwhile: try again.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
