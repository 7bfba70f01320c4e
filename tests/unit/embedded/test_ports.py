from __future__ import annotations

import socket

from conquiet.embedded.ports import _is_free, _outgoing_range, free_port


def test_a_free_port_is_one_no_outgoing_connection_can_get() -> None:
    low, high = _outgoing_range()
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    if low > 10_100:
        assert not [port for port in ports if low <= port <= high]


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not _is_free(taken.getsockname()[1])
