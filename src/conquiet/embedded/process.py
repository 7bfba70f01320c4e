"""A private folder, the one program that runs in it, and the guardian that removes both."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from conquiet.embedded import guardian, starter
from conquiet.embedded.account import Account
from conquiet.errors import ServerError, redact

__all__ = ["GuardedProcess"]

_STARTER = (sys.executable, "-I", "-S", starter.__file__)


@contextlib.contextmanager
def _held_back(signals: Collection[signal.Signals]) -> Iterator[None]:
    """A process started in the block inherits the mask: these signals cannot end it before it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class GuardedProcess:
    """Runs one program at a time in a private folder; after `clear`, or our death, nothing is left."""

    def __init__(self, name: str, program: Path, base_folder: Path, account: Account) -> None:
        folder = base_folder / f"conquiet-{name}-{secrets.token_hex(8)}"
        self.folder = folder
        self.owner = os.getpid()
        self._program = os.path.realpath(program)
        self._account = account
        self._running: subprocess.Popen[bytes] | None = None
        # The guardian starts first and knows the name of the folder: at no moment does a folder or a process exist
        # without a guardian.
        with _held_back(guardian.IGNORED):
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(self.owner), str(folder), self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                start_new_session=True,
            )
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            self._tell_guardian("done")  # whatever is at that path is not ours
            self._dismiss_guardian()
            raise
        try:
            account.take_over(folder)
        except OSError:
            self._dismiss_guardian()
            raise

    @property
    def pid(self) -> int | None:
        """The leading process while it is alive."""
        return self._running.pid if self._running and self._running.poll() is None else None

    @property
    def status(self) -> int | None:
        """The exit status of the last program; None while it runs, or after `kill`."""
        return self._running.poll() if self._running else None

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a program in the folder; its output goes to the log."""
        self.kill()
        with open(self._log, "ab") as log:
            process = self._running = subprocess.Popen(
                [*_STARTER, *self._account.ids, *self._account.prefix, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd=self.folder,
                env=environment,
                # Not reached by Ctrl-C in the terminal: an interrupted test may still need its server.
                start_new_session=True,
            )
        assert process.stdin is not None
        with process.stdin:
            if not self._tell_guardian(f"group {process.pid}"):
                raise ServerError(
                    "the guardian of this server was killed, so the server would not be removed if this "
                    "process died: close() the server and start it again"
                )
            process.stdin.write(starter.GO)

    def wait(self, timeout: float) -> int | None:
        """Wait for the end of the program; None if it is still running."""
        if self._running is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._running.wait(timeout)
        return None

    def signal_leader(self, number: signal.Signals) -> None:
        if self._running is not None:
            self._running.send_signal(number)

    def signal_all(self, number: signal.Signals) -> None:
        for pid in guardian.processes(self._group, str(self.folder), self._program):
            guardian.send(pid, number)

    def freeze(self, patience: float = 10.0) -> None:
        """Send SIGSTOP; returns when every process is stopped."""
        frozen = guardian.freeze(self._group, str(self.folder), self._program, patience)
        if moving := [pid for pid, state in frozen.items() if state not in guardian.STOPPED_STATES]:
            raise ServerError(f"processes {moving} do not stop on SIGSTOP")

    def kill(self) -> None:
        """Send SIGKILL to all processes; returns when none is left."""
        if self._running is None:
            return
        guardian.end_processes(self._group, str(self.folder), self._program)
        self._running.wait()
        self._running = None
        self._tell_guardian("group 0")

    def clear(self) -> None:
        """Kill, and remove the folder. If that fails, the guardian tries again."""
        try:
            self.kill()
            guardian.clear(0, str(self.folder), self._program)
            self._tell_guardian("done")
        finally:
            self._dismiss_guardian()

    def log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def log_since(self, start: int, lines: int = 20) -> str:
        """The last lines of the log after its first `start` bytes, without passwords."""
        if not self._log.exists():
            return ""
        with open(self._log, "rb") as log:
            log.seek(start)
            return redact("\n".join(log.read().decode(errors="replace").splitlines()[-lines:]))

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    @property
    def _group(self) -> int:
        return self._running.pid if self._running else 0

    def _tell_guardian(self, order: str) -> bool:
        assert self._guardian.stdin is not None
        try:
            self._guardian.stdin.write(order.encode() + b"\n")
        except BrokenPipeError:
            return False
        return True

    def _dismiss_guardian(self) -> None:
        """Let it end: immediately after `done`, otherwise after it has removed everything."""
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait()
