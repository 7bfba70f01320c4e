"""Strict mode: inside `process`, an audit hook refuses what touches files, sockets and other processes.

The interpreter tells its audit hooks of such calls before they happen, in whatever library they are. The hook is
installed once, when strict mode is first used, and looks at a context variable: it has no effect outside a strict
`process`, in its handlers, or in other threads. It cannot see what goes through a connection that is open already.
"""

from __future__ import annotations

import sys
from contextvars import Context, ContextVar
from functools import cache
from typing import Any

from conquiet.task.exceptions import ExceptionCategory, TransactionException

__all__ = ["forbid_io"]

_STRICT: ContextVar[bool] = ContextVar("conquiet_strict_io", default=False)

_REFUSED = frozenset(
    ["open", "os.open", "os.listdir", "os.scandir", "os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess.Popen", "shutil.copyfile", "shutil.move", "shutil.rmtree", "shutil.copytree", "tempfile.mkstemp", "tempfile.mkdtemp", "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo", "sqlite3.connect", "urllib.Request", "http.client.connect", "ftplib.connect", "smtplib.connect", "imaplib.open", "poplib.connect", "telnetlib.Telnet.open", "webbrowser.open", "mmap.__new__"]
)


def forbid_io(context: Context) -> None:
    """Whatever runs in `context` from here on is told off when it tries."""
    _install()
    context.run(_STRICT.set, True)


@cache
def _install() -> None:
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in _REFUSED and _STRICT.get():
        raise TransactionException(
            f"strict mode: process called {event!r}; tasks compute, and leave files, sockets and processes to services",
            ExceptionCategory.SYSTEM,
        )
