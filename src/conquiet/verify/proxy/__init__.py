"""Network faults in front of a real server: a TCP proxy that knows where commands and replies begin and end.

    with Proxy(6379, RedisFraming) as proxy, connect(f"redis://127.0.0.1:{proxy.port}/0") as redis:
        strike = proxy.strike("XACK", "reply", part=0.0)   # executed, but no byte of its reply comes back
        …
        assert strike.done.is_set()

`Proxy` is in front of Redis (`RedisFraming`) or PostgreSQL (`PostgresFraming`, with `sslmode=disable` and
`gssencmode=disable` in the DSN). It cannot read TLS. `Cutting` cuts connections at every kind of place, one after the
other. `Relay` is a proxy without knowledge of the protocol, for tests that do something else with the bytes.
"""

from conquiet.verify.proxy.cuts import PLACES, Cutting
from conquiet.verify.proxy.framing import Command, Framing, PostgresFraming, RedisFraming
from conquiet.verify.proxy.proxy import Fate, Proxy, Side, Strike
from conquiet.verify.proxy.relay import Address, Relay

__all__ = [
    "PLACES",
    "Address",
    "Command",
    "Cutting",
    "Fate",
    "Framing",
    "PostgresFraming",
    "Proxy",
    "RedisFraming",
    "Relay",
    "Side",
    "Strike",
]
