"""Closes the connections of SQLite stores before a fork, so that parent and child each open their own.

SQLite keeps its locks per process, and a child inherits the note that they are held, but not the locks: even a new
connection there would be without them, and lose what it writes when the parent closes its own. So nothing may be open.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["Forking", "close_before_forks"]


class Forking(Protocol):
    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


_STORES: weakref.WeakSet[Forking] = weakref.WeakSet()


class _Forks(threading.local):  # two threads may fork at the same time
    def __init__(self) -> None:
        self.stores: list[Forking] = []


_FORKS = _Forks()


def close_before_forks(store: Forking) -> None:
    _STORES.add(store)


def _before() -> None:
    _FORKS.stores = list(_STORES)
    for store in _FORKS.stores:
        store.before_fork()


def _after(child: bool) -> None:
    while _FORKS.stores:
        _FORKS.stores.pop().after_fork(child)


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(False), after_in_child=lambda: _after(True)
)
