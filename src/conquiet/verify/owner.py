"""What the worker processes of a verification share: they get their orders on standard input.

The first line is the order, in JSON. A `held` process prints `at <id>` in each handler and continues when it reads that
id; another prints `begun`, once. On SIGTERM it prints `stop`; its last line has its counts.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping
from time import sleep
from typing import Any

__all__ = ["PLACES", "Owner", "obey"]

PLACES = 2  # concurrent handlers in a process that is not held


class Owner:
    """The other end of standard input and output. The process ends with its owner."""

    def __init__(self) -> None:
        self._go_on: dict[str, threading.Event] = {}
        self._begun = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, line: str) -> None:
        os.write(1, line.encode() + b"\n")

    def hold(self, about: str) -> None:
        event = self._go_on.setdefault(about, threading.Event())
        self.say(f"at {about}")
        event.wait()

    def begin(self) -> None:
        if self._begun.acquire(blocking=False):
            self.say("begun")

    def take_time(self, order: Mapping[str, Any], about: str) -> None:
        """In a handler: wait until the owner lets it continue, or sleep for a moment."""
        if order["held"]:
            self.hold(about)
        else:
            self.begin()
            sleep(random.uniform(0.0, order["seconds"]))

    def _listen(self) -> None:
        while about := sys.stdin.readline().strip():
            self._go_on.setdefault(about, threading.Event()).set()
        os._exit(1)


def obey(works: Mapping[str, Callable[[dict[str, Any], Owner], None]]) -> None:
    """Read the order and do the work that it names."""
    order = json.loads(sys.stdin.readline())
    works[order["work"]](order, Owner())
