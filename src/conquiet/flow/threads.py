"""Reused threads: starting a thread costs more than most of the jobs that run on it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

__all__ = ["THREADS", "Threads"]

Job = Callable[[], None]


class Threads:
    """Runs each job immediately, on an idle thread or a new one. Threads that stay idle end.

    There is no limit here: callers bound what they start. The threads are daemons, because an abandoned call must not
    keep the process from ending; flows join what they start.
    """

    def __init__(self, idle_seconds: float = 10.0) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[tuple[Job, str, int]]] = []
        self._busy: dict[int, int] = {}  # by the job's number; the thread that runs it, 0 until it begins
        self.created = 0  # in total; tests and benches check that hot paths create none
        self.started = 0  # jobs in total; also numbers them
        os.register_at_fork(after_in_child=self._forget_threads)

    def start(self, job: Job, name: str) -> None:
        """Run `job`, which must not raise, under the thread name `name`."""
        with self._lock:
            self.started = number = self.started + 1
            self._busy[number] = 0
            inbox = self._idle.pop() if self._idle else None
            if inbox is None:
                self.created += 1
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), daemon=True).start()
        inbox.put((job, name, number))

    def busy(self, since: int = 0) -> list[int]:
        """Return the thread ident (0 if none yet) of each job started after number `since` that has not ended."""
        with self._lock:
            return [thread for number, thread in self._busy.items() if number > since]

    def _work(self, inbox: queue.SimpleQueue[tuple[Job, str, int]]) -> None:
        thread = threading.current_thread()
        ident = threading.get_ident()
        while True:
            try:
                job, name, number = inbox.get(timeout=self._idle_seconds)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # just taken from the list: its job is about to arrive
            thread.name = f"conquiet {name}"
            self._busy[number] = ident
            job()
            del job  # an idle thread keeps no references
            thread.name = "conquiet idle"
            with self._lock:
                self._busy.pop(number, None)  # unless this is a forked child, which has forgotten it
                self._idle.append(inbox)

    def _forget_threads(self) -> None:
        # A forked child has none of its parent's threads, but maybe a lock that one of them held.
        self._lock = threading.Lock()
        self._idle = []
        self._busy = {}


THREADS = Threads()
