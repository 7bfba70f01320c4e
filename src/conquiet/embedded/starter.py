"""Starts a program when it is told to: `python starter.py <uid> <gid> <program> <arguments…>`; `-` for no other account.

The program must not run before the guardian knows its process group. If the process that started this one dies before
that, the input ends, and there is nothing to remove. Run by file name, with the standard library only. It takes the
account itself, because that account may not be able to enter the folder of this Python.
"""

from __future__ import annotations

import os
import signal
import sys

GO = b"go\n"


def main(uid: str, gid: str, *command: str) -> None:
    if sys.stdin.buffer.readline() != GO:
        return
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    # Python ignores these two, and what is ignored stays so in the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)  # noqa: S606 - a list of words; there is no shell


if __name__ == "__main__":
    main(*sys.argv[1:])
