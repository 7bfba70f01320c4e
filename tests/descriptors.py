"""Running out of file descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["descriptors_left"]


@contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """Inside the block this process can open `number` more files and sockets, and then no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = [os.dup(0) for _ in range(number + 1)]
    for descriptor in lowest:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
