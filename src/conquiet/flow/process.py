"""Calls in child processes, which can be stopped at any time.

A child is a fresh interpreter that imports the function by its name and gets its arguments as JSON, so nothing
is pickled and nothing is inherited. It is reused for the next call. At the time limit it is killed, with all
processes that it has started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import (
    CallTimeoutError,
    IsolationConfigError,
    ProcessCallsClosedError,
    ProcessDiedError,
    RemoteCallError,
)
from conquiet.flow.isolation import describe

__all__ = ["ProcessCalls", "read_frame", "write_frame"]

_LENGTH = struct.Struct(">I")


class ProcessCalls:
    """Runs `fn` in child processes. `run(*args)` returns its result; result and arguments must be JSON.

    With `wrap`, the child calls `wrap(fn, *args)`, for example to turn the JSON into the arguments of `fn`.
    """

    def __init__(
        self, fn: Callable[..., Any], *, wrap: Callable[..., Any] | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._target = {"fn": _importable(fn), "wrap": None if wrap is None else _importable(wrap)}
        self._name = describe(fn)
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_ChildProcess] = []
        self._busy: set[_ChildProcess] = set()
        self._closed = False
        self.killed_total = 0

    def run(self, *args: Any, timeout: float | None = None) -> Any:
        """Return the result; raise `RemoteCallError` if the call raised, `CallTimeoutError` if it was killed."""
        return self._run(args, timeout, lambda child: None)

    async def run_async(self, *args: Any, timeout: float | None = None) -> Any:
        """Like `run`, but waits on a thread; cancelling it kills the child."""
        cancelled = False
        children: list[_ChildProcess] = []

        def on_child(child: _ChildProcess) -> None:
            children.append(child)
            if cancelled:
                child.kill()

        waiting = asyncio.ensure_future(asyncio.to_thread(self._run, args, timeout, on_child))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
            for child in children:
                child.kill()
            await asyncio.wait((waiting,))
            waiting.exception()  # the error from the kill is dropped: the caller gets the cancellation
            raise

    def _run(
        self, args: tuple[Any, ...], timeout: float | None, on_child: Callable[[_ChildProcess], None]
    ) -> Any:
        try:
            request = json.dumps({"args": args}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise IsolationConfigError(f"the arguments of {self._name} are not JSON: {error}") from error
        child = self._take()
        try:
            on_child(child)
            answer = child.ask(request, timeout, self._clock)
        except TimeoutError:
            raise CallTimeoutError(
                f"{self._name} ran past its limit of {timeout:g} s; its process was killed"
            ) from None
        finally:
            self._give_back(child)
        if answer is None:
            raise ProcessDiedError(f"the process that ran {self._name} died: {child.obituary}")
        if "error" in answer:
            raise RemoteCallError(**answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Kill every child, including busy ones."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for child in busy:
            child.kill()  # the thread that waits for it disposes of it
        for child in idle:
            child.dispose()

    def __enter__(self) -> ProcessCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> _ChildProcess:
        with self._lock:
            if self._closed:
                raise ProcessCallsClosedError(f"{self._name} was not started: its ProcessCalls is closed")
            child = self._idle.pop() if self._idle else _ChildProcess(self._target)
            self._busy.add(child)
            return child

    def _give_back(self, child: _ChildProcess) -> None:
        with self._lock:
            self._busy.discard(child)
            if child.usable and not self._closed:
                self._idle.append(child)
                return
            self.killed_total += 1
        child.dispose()


class _ChildProcess:
    def __init__(self, target: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # In its own session: Ctrl-C on the terminal reaches only the parent, and killing the group also ends
            # what the call has started.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "conquiet.flow.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        self._socket = ours
        self.usable = True
        self._ready = False
        write_frame(ours, json.dumps(target).encode())

    def ask(self, request: bytes, timeout: float | None, clock: Clock) -> dict[str, Any] | None:
        """Return the child's answer, or None if it died. After TimeoutError or an interrupt it must not be reused."""
        self.usable = False
        if not self._ready:
            # Starting the interpreter and importing the function does not count against the limit.
            loaded = self._answer(lambda: None)
            if loaded is None or "error" in loaded:
                return loaded
            self._ready = True
        deadline = None if timeout is None else clock.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else deadline - clock.monotonic()

        self._socket.settimeout(left())  # the previous call has left its own limit on the socket
        try:
            write_frame(self._socket, request)
        except ConnectionError:
            return None
        answer = self._answer(left)
        self.usable = answer is not None
        return answer

    def _answer(self, left: Callable[[], float | None]) -> dict[str, Any] | None:
        try:
            frame = read_frame(self._socket, left)
        except ConnectionError:
            return None
        return None if frame is None else json.loads(frame)

    def kill(self) -> None:
        """Kill the child and all processes that it started. Safe from any thread, even while another waits in `ask`."""
        self.usable = False
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()  # it is not in its own session yet

    def dispose(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()

    @property
    def obituary(self) -> str:
        code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def write_frame(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)) + data)


def read_frame(connection: socket.socket, left: Callable[[], float | None] = lambda: None) -> bytes | None:
    """Read one message; None at the end of the stream. `left` returns the seconds that remain; 0 is TimeoutError."""
    head = _read_exactly(connection, _LENGTH.size, left)
    return None if head is None else _read_exactly(connection, _LENGTH.unpack(head)[0], left)


def _read_exactly(connection: socket.socket, size: int, left: Callable[[], float | None]) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        seconds = left()
        if seconds is not None and seconds <= 0:
            raise TimeoutError
        connection.settimeout(seconds)
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _importable(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the module and name by which a child imports `fn`."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if not module or not name or "<" in name:
        raise IsolationConfigError(
            f"{describe(fn)} cannot run in a child process: the child imports it by name, so it must be a "
            "function at the top level of a module, not a lambda, a closure or a bound method"
        )
    main_file = None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        main_file = getattr(main, "__file__", None)
        if spec is not None:
            module, main_file = spec.name, None
        elif main_file is None:
            raise IsolationConfigError(
                f"{describe(fn)} cannot run in a child process: put it into a module that is a file"
            )
        else:
            main_file = str(Path(main_file).resolve())
    return {"module": module, "name": name, "main_file": main_file}
