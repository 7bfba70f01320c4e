"""Sends notifications of PostgreSQL, outside of the transactions that they are about."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from conquiet.errors import ConquietError
from conquiet.flow import THREADS, Flow, Signal, Sleep, run
from conquiet.jobs.backends.postgres.listener import channel_of
from conquiet.observe import SafeLogger

__all__ = ["Notifier"]

# Between two notifications of a process; those that are due meanwhile are sent together. A slow server gets fewer, but an idle
# worker is woken within 50 ms.
_PAUSE_SECONDS = 0.01
_UNHEARD_SECONDS = 0.025  # after somebody looked and nobody waited, until the next look
_LONGEST_PAUSE = 0.04
_PAUSE_SHARE = 10  # times what a notification took
_IDLE_SECONDS = 10.0  # after that long without notifications the notifier's connection is closed
_FLUSH_SECONDS = 5.0  # to wait for the last notification of a store that is closed
_log = SafeLogger("conquiet.jobs")


class _Speaker(Protocol):
    def tell(self, channels: Sequence[str]) -> Flow[set[str]]: ...

    def close(self) -> Flow[None]: ...


class Mark(NamedTuple):
    """A moment: the time, and how many commits the notifier knew of."""

    commits: int
    time: float


class _Channel:
    """What a process knows about a channel."""

    def __init__(self) -> None:
        self.pending = False  # there are commits that somebody who waits has to be told of
        self.waited: int | None = None  # somebody did, as was known after that many commits; None: nobody
        self.looked_at = -math.inf  # nobody did then, so what is pending was committed later

    def found(self, mark: Mark, waited: bool, commits: int) -> None:
        """Take in what a statement has found that was begun at `mark`. Another one may have found more, later."""
        if waited:
            self.waited = commits
        else:
            self.looked_at = max(self.looked_at, mark.time)
            if self.waited is not None and self.waited <= mark.commits:
                self.waited = None


class Notifier:
    """Notifies workers that wait, from a thread and a connection of its own, at most once per channel and 10 ms.

    A NOTIFY makes the commits of all that notify wait for each other, so it is not part of the transactions that change
    jobs. Whoever changes them does not wait for it either. The thread serves synchronous and asyncio callers; it ends
    when there has been nothing to do for some time. A notification that is lost, because the process or its connection
    dies here, is made up for by the polling of workers.

    Many processes that enqueue would be slowed down even by asking whether anybody waits. So an enqueue finds that out on its
    way. What it finds says nothing about its own job, which is not committed yet; but if nobody waits, nobody has to be told of the
    jobs that were committed before it began. Only the last one of a row is left to the thread.
    """

    def __init__(self, speaker: Callable[[], _Speaker]) -> None:
        self._speaker = speaker
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._commits = 0
        self._quiet_until = -math.inf
        self._wakes_at = -math.inf
        self._more = threading.Event()
        self._hurry = False  # somebody waits for the end
        self._ended: Signal | None = None  # None: there is no thread

    def mark(self) -> Mark:
        return Mark(self._commits, time.monotonic())

    def notify(self, queue: str, begun: Mark | None = None, waited: bool = False) -> None:
        """Notify the workers of `queue` soon, if any wait. Returns at once. Call it after the commit.

        `waited` is what the committed statement found that was begun at `begun`.
        """
        if os.getpid() != self._pid:
            self._reset()  # a fork has no thread, and what is pending is its parent's
        name = channel_of(queue)
        with self._lock:
            channel = self._channels.setdefault(name, _Channel())
            self._commits += 1
            if begun is not None:
                channel.found(begun, waited, self._commits)
            channel.pending = True
            due = self._due(channel)
            if self._ended is not None:
                if due < self._wakes_at:
                    self._wakes_at = due
                    self._more.set()
                return
            self._start()

    def _start(self) -> None:
        self._ended = Signal()
        self._hurry = False
        _AT_EXIT.add(self)
        THREADS.start(self._work, "conquiet notifications")

    def _due(self, channel: _Channel) -> float:
        """Return when to tell those who wait on this channel, or to ask whether anybody does."""
        if channel.waited is not None:
            return self._quiet_until
        return max(self._quiet_until, channel.looked_at + _UNHEARD_SECONDS)

    def flush(self) -> Flow[None]:
        """Send what is pending and close the connection."""
        ended = self._ended
        if ended is not None and os.getpid() == self._pid:
            with self._lock:
                self._hurry = True
                self._more.set()
            yield Sleep(_FLUSH_SECONDS, ended, shield=True)

    def _work(self) -> None:
        speaker = self._speaker()
        failed = False
        try:
            while names := self._next():
                begun = self.mark()
                heard = run(speaker.tell(names))
                self._told(names, heard, begun)
        except ConquietError as error:
            failed = True
            _log.debug("workers were not notified, they find new jobs by polling: %s", error)
        finally:
            run(speaker.close())
            with self._lock:
                ended, self._ended = self._ended, None
                if failed:
                    self._channels.clear()
                elif any(channel.pending for channel in self._channels.values()):  # after the last look
                    self._start()
            if ended is not None:
                ended.set()

    def _told(self, names: Sequence[str], heard: set[str], begun: Mark) -> None:
        with self._lock:
            now = time.monotonic()
            pause = max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - begun.time))
            self._quiet_until = now + min(pause, _LONGEST_PAUSE)
            for name in names:
                self._channels[name].found(begun, name in heard, self._commits)

    def _next(self) -> list[str]:
        """Return the channels to notify; none if there have been none for some time, or if somebody waits for the end."""
        while True:
            with self._lock:
                now = time.monotonic()
                pending = {name: channel for name, channel in self._channels.items() if channel.pending}
                names = [name for name, one in pending.items() if self._hurry or self._due(one) <= now]
                for name in names:
                    pending[name].pending = False
                if names or self._hurry:
                    return names
                if not pending:
                    self._channels.clear()
                self._wakes_at = min(map(self._due, pending.values()), default=now + _IDLE_SECONDS)
                self._more.clear()
            if not self._more.wait(max(self._wakes_at - now, 0.0)) and not pending:
                return []


_AT_EXIT: weakref.WeakSet[Notifier] = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    for notifier in list(_AT_EXIT):
        run(notifier.flush())
