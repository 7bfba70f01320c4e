"""Strict mode: inside `process`, an audit hook refuses access to files, sockets and other processes.

The interpreter calls audit hooks before such operations, whichever library performs them. The hook is installed once,
when strict mode is first used, and checks a context variable: it has no effect outside a strict `process`, in the
handlers, or in other threads. It cannot see traffic on a connection that is already open.
"""

from __future__ import annotations

import sys
import tokenize
from contextvars import Context, ContextVar
from functools import cache
from typing import Any

from conquiet.task.exceptions import ExceptionCategory, TransactionException

__all__ = ["forbid_io"]

_STRICT: ContextVar[bool] = ContextVar("conquiet_strict_io", default=False)

_FILES = """
    open glob.glob os.chmod os.chown os.link os.listdir os.mkdir os.remove os.rename os.rmdir os.scandir
    os.setxattr os.symlink os.truncate os.utime pathlib.Path.glob pathlib.Path.rglob shutil.chown shutil.copyfile
    shutil.copymode shutil.copystat shutil.copytree shutil.make_archive shutil.move shutil.rmtree
    shutil.unpack_archive sqlite3.connect tempfile.mkdtemp tempfile.mkstemp
"""
_SOCKETS = """
    ftplib.connect http.client.connect imaplib.open nntplib.connect poplib.connect smtplib.connect socket.bind
    socket.connect socket.getaddrinfo socket.gethostbyaddr socket.gethostbyname socket.getnameinfo socket.sendmsg
    socket.sendto telnetlib.Telnet.open urllib.Request webbrowser.open
"""
_PROCESSES = """
    os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile os.system pty.spawn subprocess.Popen
"""
_REFUSED = frozenset((_FILES + _SOCKETS + _PROCESSES).split())

# The interpreter itself reads files for late imports and for the source lines of tracebacks.
_INTERPRETER = ("<frozen importlib", tokenize.__file__)


def forbid_io(context: Context) -> None:
    """Refuse I/O by code that runs in `context` from now on."""
    _install()
    context.run(_STRICT.set, True)


@cache
def _install() -> None:
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event not in _REFUSED or not _STRICT.get():
        return
    if sys._getframe(1).f_code.co_filename.startswith(_INTERPRETER):
        return
    raise TransactionException(
        f"strict mode: process called {event!r}; a task computes, and must leave files, sockets and processes to the "
        "services it is given (or run it without ConsumerLoopPolicy.strict_io)",
        ExceptionCategory.SYSTEM,
    )
