"""Several processes of one command: started by a parent that keeps their number, passes signals on and adds up results."""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from conquiet.clock import HEARD_SECONDS

__all__ = ["Member", "member", "run_processes"]

_log = logging.getLogger("conquiet.cli")
_VARIABLE = "CONQUIET_MEMBER"
_SETTLED_SECONDS = 10.0  # a process that lived for so long is replaced at once
_LONGEST_PAUSE = 30.0
_ENDING_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Member:
    """One of the processes, seen from inside."""

    number: int
    _parent: socket.socket

    @contextmanager
    def stopped_with_parent(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if the parent dies: nobody would stop this process any more."""
        thread = threading.Thread(target=self._watch, args=(stop,), name="conquiet-parent", daemon=True)
        thread.start()
        yield

    def _watch(self, stop: Callable[[], None]) -> None:
        with suppress(OSError):  # reset: the parent is gone as well
            self._parent.recv(1)
        _log.warning("the process that started this one is gone: it stops as after SIGTERM")
        stop()

    def report(self, counts: dict[str, int]) -> None:
        with suppress(OSError):  # nobody is left who could add it up
            self._parent.sendall(json.dumps(counts).encode())


def member() -> Member | None:
    """Return which of the processes this one is; None in a command that was started by itself."""
    told = os.environ.get(_VARIABLE)
    if told is None:
        return None
    number, _, descriptor = told.partition(":")
    # It stays in the environment and inheritable, for a process that replaces itself.
    return Member(int(number), socket.socket(fileno=int(descriptor)))


def run_processes(
    count: int,
    environment: Mapping[str, str] | None = None,
    ended: Callable[[int], None] = lambda number: None,
) -> tuple[dict[str, int], int]:
    """Run this command in `count` processes until all have ended; return the sum of their counts and the exit code.

    They get `environment` beside that of this process. `ended` is called with the number of each that has ended.
    SIGTERM and Ctrl-C are passed on. A process that a signal kills is replaced; one that fails by itself has said why, and
    ends the others.
    """
    parent = _Parent(count, environment or {}, ended)
    before = {number: signal.signal(number, parent.pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        parent.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        parent.close()
    return dict(parent.counts), parent.status


class _Process:
    def __init__(self, number: int, environment: Mapping[str, str]) -> None:
        self.number = number
        self.started = time.monotonic()
        self.link, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, **environment, _VARIABLE: f"{number}:{theirs.fileno()}"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in a terminal reaches only the parent, which passes it on once
            )

    def reported(self) -> dict[str, int]:
        """Return what it reported before its end. A process that it left behind may hold the other side open."""
        with self.link:
            self.link.setblocking(False)
            try:
                told = self.link.recv(4096)
            except OSError:  # nothing, or reset
                return {}
        return json.loads(told) if told else {}


class _Parent:
    def __init__(self, count: int, environment: Mapping[str, str], ended: Callable[[int], None]) -> None:
        self._environment = environment
        self._tell_ended = ended
        self.counts: Counter[str] = Counter()
        self.status = 0
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Process] = {}
        self._ending: set[int] = set()
        self._due = dict.fromkeys(range(1, count + 1), 0.0)  # number: when to start it
        self._pauses = dict.fromkeys(self._due, 0.0)

    def run(self) -> None:
        while self._running or (self._due and not self._stopped):
            self._start_due()
            # In short pieces: a signal just before the wait would not interrupt it.
            for key, _ in self._selector.select(_ENDING_SECONDS if self._ending else HEARD_SECONDS):
                self._selector.unregister(key.fileobj)  # a report, or the end: it is over in a moment
                self._ending.add(key.data.number)
            for process in list(self._running.values()):
                if process.popen.poll() is not None:
                    self._ended(process)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stop(signal.SIGTERM)

    def close(self) -> None:
        """Leave nothing running, whatever went wrong here."""
        for process in self._running.values():
            process.popen.kill()
            process.popen.wait()
            process.link.close()
        self._selector.close()

    def _stop(self, number: int) -> None:
        self._stopped = True
        for process in list(self._running.values()):
            process.popen.send_signal(number)

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now and not self._stopped]:
            del self._due[number]
            process = self._running[number] = _Process(number, self._environment)
            self._selector.register(process.link, selectors.EVENT_READ, process)
            if self._stopped:  # a signal came while it started
                process.popen.send_signal(signal.SIGTERM)

    def _ended(self, process: _Process) -> None:
        if process.number not in self._ending:
            self._selector.unregister(process.link)
        self._ending.discard(process.number)
        self.counts.update(process.reported())
        del self._running[process.number]
        self._tell_ended(process.number)
        status = process.popen.returncode
        if status == -signal.SIGTERM and self._stopped:
            return  # stopped before it could begin
        if status < 0 and not self._stopped:
            self._replace(process, status)
        elif status != 0 and self.status == 0:
            self.status = status if status > 0 else 128 - status
            self._stop(signal.SIGTERM)

    def _replace(self, process: _Process, status: int) -> None:
        number = process.number
        lived = time.monotonic() - process.started
        pause = 0.0 if lived > _SETTLED_SECONDS else min(2 * self._pauses[number] + 0.5, _LONGEST_PAUSE)
        self._pauses[number] = pause
        self._due[number] = time.monotonic() + pause
        _log.error(
            "process %d (pid %d) was killed by %s after %.0f s: another one starts in %.1f s",
            number,
            process.popen.pid,
            signal.Signals(-status).name,
            lived,
            pause,
        )
