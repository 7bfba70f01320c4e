"""What the private servers share: start on a free port, wait until ready, stop, kill, pause, restart."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from conquiet.embedded.account import Account
from conquiet.embedded.binaries import ServerBinary
from conquiet.embedded.ports import LOOPBACK, free_port
from conquiet.embedded.process import GuardedProcess
from conquiet.errors import ServerError

__all__ = ["PrivateServer"]

# How long a start waits for temporary obstacles: a dying predecessor, a port that is being released.
_PATIENCE = 10.0
_PORTS_TO_TRY = 20
_PORT_TAKEN = "Address already in use"

_open_servers: set[PrivateServer] = set()


class PrivateServer(ABC):
    """A private server on a free loopback port, with its data in a private folder.

    `stop`, `kill` and `restart` keep data and port. `close`, the end of the `with` block and the end of this process
    for any reason remove everything. Methods may be called from any thread.
    """

    _STOP_SIGNAL: ClassVar[signal.Signals] = signal.SIGTERM
    _PASSING: ClassVar[tuple[str, ...]] = (_PORT_TAKEN,)
    """Log messages of a server that failed to start for a temporary reason: the start is tried again."""

    def __init__(self, binary: ServerBinary, base_folder: str | Path | None, ready_timeout: float) -> None:
        self.binary = binary
        self._base_folder = base_folder
        self._ready_timeout = ready_timeout
        self._account = Account()
        self._lock = threading.RLock()
        self._process: GuardedProcess | None = None
        self._port: int | None = None

    # Public methods.

    def start(self) -> Self:
        """Start, or start again on the same data and port, and wait until it answers. Idempotent."""
        with self._lock:
            if self.running:
                return self
            if self._process is not None:
                self._run_until_ready(self._process, ports_to_try=0)
                return self
            base = Path(os.path.realpath(self._base_folder or tempfile.gettempdir()))
            self._account = self._choose_account(base)
            self._process = GuardedProcess(self.flavour, self.binary.program, base, self._account)
            _open_servers.add(self)
            try:
                self._port = free_port()
                self._prepare()
                self._run_until_ready(self._process, ports_to_try=_PORTS_TO_TRY)
            except BaseException:  # Ctrl-C too: no half-started server may stay
                self.close()
                raise
            return self

    def stop(self, timeout: float = 10.0) -> None:
        """Ask the server to stop, and kill it after `timeout`. Data and port stay for `start`."""
        with self._lock:
            if self._process is None:
                return
            if self.running:
                self._process.signal_leader(self._STOP_SIGNAL)
                self._process.signal_all(signal.SIGCONT)  # a paused server does not handle signals
                self._process.wait(timeout)
            self._process.kill()

    def kill(self) -> None:
        """kill -9 of all its processes: nothing is flushed. Data and port stay for `start`."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered. Returns when every process is stopped."""
        with self._lock:
            self._running_process().freeze()

    def resume(self) -> None:
        """SIGCONT: the server continues."""
        with self._lock:
            self._running_process().signal_all(signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server if it is running or paused, and start it on the same data and port."""
        with self._lock:
            self.stop()
            self.start()

    def close(self) -> None:
        """Stop the server and remove everything that belongs to it. Idempotent."""
        process = self._process
        # A forked copy of the owner runs the same exit handlers and must not remove the server.
        if process is None or os.getpid() != process.owner:
            return
        with self._lock:
            self._process = self._port = None
            _open_servers.discard(self)
            process.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def describe(self) -> str:
        """One line: server and version, origin of the binary, port."""
        port = f"port {self._port}" if self._port else ""
        return ", ".join(part for part in (self.binary.describe(), self._account.note, port) if part)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        return self._private().log_since(0, lines)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.pid is not None

    @property
    def pid(self) -> int:
        pid = self._running_process().pid
        if pid is None:
            raise self._not_running()
        return pid

    @property
    def host(self) -> str:
        return LOOPBACK

    @property
    def port(self) -> int:
        if self._port is None:
            raise self._not_running()
        return self._port

    @property
    def folder(self) -> Path:
        """The private folder with the data and the log."""
        return self._private().folder

    @property
    def flavour(self) -> str:
        """`redis`, `valkey` or `postgresql`."""
        return self.binary.flavour

    @property
    def version(self) -> str:
        return self.binary.version

    # Implemented by each kind of server.

    @abstractmethod
    def _prepare(self) -> None:
        """Create what the first start needs in the private folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def _answers(self, pid: int) -> bool:
        """Whether our server (process `pid`, not another one on that port) accepts requests.

        May raise OSError, which means not yet.
        """

    def _choose_account(self, base_folder: Path) -> Account:
        return Account()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LC_ALL": "C"}  # "C", because we search the log for English messages

    # Starting.

    def _run_until_ready(self, process: GuardedProcess, ports_to_try: int) -> None:
        patience = time.monotonic() + _PATIENCE
        while True:
            log_start = process.log_size()
            process.spawn(self._command(), self._environment())
            try:
                if self._became_ready(process):
                    return
                status = process.status
            except BaseException:  # interrupted: do not keep a half-started server
                process.kill()
                raise
            process.kill()
            said = process.log_since(log_start)
            if status is not None and _PORT_TAKEN in said and ports_to_try:
                ports_to_try -= 1
                self._port = free_port()
            elif status is not None and time.monotonic() < patience and any(w in said for w in self._PASSING):
                time.sleep(0.1)
            else:
                how = f"not ready after {self._ready_timeout:g} s" if status is None else f"ended ({status})"
                raise ServerError(
                    f"{self.describe()}: {how} instead of becoming ready; its log ends:\n{said}"
                )

    def _became_ready(self, process: GuardedProcess) -> bool:
        deadline = time.monotonic() + self._ready_timeout
        while (pid := process.pid) is not None and time.monotonic() < deadline:
            try:
                if self._answers(pid):
                    return True
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.01)
        return False

    def _run_once(self, command: list[str], timeout: float = 60.0) -> None:
        """Run a command that prepares the folder, and wait for its end; it is guarded like the server."""
        process = self._private()
        log_start = process.log_size()
        process.spawn(command, self._environment())
        status = process.wait(timeout)
        process.kill()
        if status != 0:
            how = f"ran for more than {timeout:g} s" if status is None else f"ended with status {status}"
            said = process.log_since(log_start)
            raise ServerError(f"{self.describe()}: {Path(command[0]).name} {how}; it said:\n{said}")

    def _private(self) -> GuardedProcess:
        if self._process is None:
            raise self._not_running()
        return self._process

    def _running_process(self) -> GuardedProcess:
        process = self._private()
        if process.status is not None:
            raise ServerError(
                f"{self.describe()}: exited with status {process.status}; its log ends:\n{self.log_tail()}"
            )
        if process.pid is None:
            raise self._not_running()
        return process

    def _not_running(self) -> ServerError:
        return ServerError(f"{self.describe()}: it is not running; call start(), or use it in a with block")


@atexit.register
def _close_all() -> None:
    for server in list(_open_servers):
        server.close()
