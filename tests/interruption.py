"""A pytest plugin: a test run ends cleanly, however it is ended.

When it is killed it still tears down its fixtures, so that they stop their servers. And it does end: a thread that
a failing test left waiting for ever would otherwise keep the interpreter alive after the last line is printed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PATIENCE_SECONDS = 5.0


def pytest_configure(config: pytest.Config) -> None:
    # Without this, SIGTERM ends Python immediately, and no fixture is torn down.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end_run)
    # A shell that starts us in the background ignores SIGINT, and our children inherit that. Some tests send SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # make forwards the signals it can catch. When make itself gets SIGKILL, the kernel signals us.
    if "MAKELEVEL" in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    config.pluginmanager.register(LeftThreads(), "left-threads")


def end_run(number: int, frame: FrameType | None) -> None:
    """Act like Ctrl-C: the running test is interrupted, fixtures are torn down, pytest exits with 2."""
    raise KeyboardInterrupt(signal.Signals(number).name)


class LeftThreads:
    """Threads that outlive the tests fail the run and are named, but do not keep it alive.

    A worker process of pytest-xdist reports them to the main process, which ends the worker in any case.
    """

    def __init__(self) -> None:
        self.before = set(threading.enumerate())
        self.left: list[str] = []
        self.holds = False
        self.status: int = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left += getattr(node, "workeroutput", {}).get("threads", ())

    @pytest.hookimpl(trylast=True)  # after the session's fixtures are torn down
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in set(threading.enumerate()) - self.before:
            if not thread.daemon:
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    self.left.append(thread.name)
                    self.holds = True
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["threads"] = self.left
            self.holds = False
        if self.left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.status = int(session.exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self.left:
            terminalreporter.write_line(f"left running by a test: {name}", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self.holds:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)
