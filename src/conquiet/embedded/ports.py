"""A free port on the loopback interface."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["LOOPBACK", "free_port"]

LOOPBACK = "127.0.0.1"
_LOWEST, _HIGHEST = 10_000, 32_767
_random = random.SystemRandom()  # not the shared generator, which tests seed


def free_port() -> int:
    """A port that is not in use, outside the range of ports for outgoing connections.

    Inside that range, a client that reconnects in a loop while its server is down can be given the port that it
    connects to: it then talks to itself, and the server cannot start again.
    """
    low, high = _outgoing_range()
    ports = [port for port in range(_LOWEST, _HIGHEST + 1) if not low <= port <= high]
    for port in _random.sample(ports, min(len(ports), 100)):
        if _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _outgoing_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except FileNotFoundError:
        return 49_152, 65_535  # the range of the standard, which macOS and the BSDs use
    return int(low), int(high)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
