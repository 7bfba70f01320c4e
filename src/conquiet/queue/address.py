"""Where a Redis URL leads: to one server, to the master that Sentinels name, or to a cluster.

redis-py reads a URL leniently: `/prod` is database 0, `/1/2` is database 12, and a password with an unescaped / or @
moves into the host, the port or the path, which errors and name servers then see. Such a URL is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from conquiet.redaction import impossible_host, impossible_text

__all__ = ["Address", "AddressError"]

Kind = Literal["server", "sentinel", "cluster"]

_URL = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>#.*)?",
    re.DOTALL,
)
_HOST = re.compile(r"(?P<name>\[[^\[\]]+\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
_KINDS: dict[str, tuple[Kind, str]] = {
    "redis": ("server", "redis"),
    "rediss": ("server", "rediss"),
    "redis+sentinel": ("sentinel", "redis"),
    "rediss+sentinel": ("sentinel", "rediss"),
    "redis+cluster": ("cluster", "redis"),
    "rediss+cluster": ("cluster", "rediss"),
}
_PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_ESCAPES = "in a password, write %2F for /, %40 for @, %3A for :, %23 for # and %3F for ?"


class AddressError(ValueError):
    """What is wrong with a URL. The text contains no part of it that may be a secret."""


@dataclass(frozen=True, slots=True)
class Address:
    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    service: str
    plain: str
    """For redis-py: the first host, with user, password, database and options."""

    @classmethod
    def parse(cls, url: object) -> Address:
        if not isinstance(url, str):
            raise AddressError(f"it is a {type(url).__name__}, not a str")
        if impossible_text(unquote(url)):
            raise AddressError("it has a NUL or half a surrogate pair in it")
        found = _URL.fullmatch(url)
        if found is None:
            raise AddressError("it has no scheme")
        scheme, place, path = found["scheme"], found["place"], found["path"]
        if found["rest"]:
            raise AddressError(f"# has no meaning in it; {_ESCAPES}")
        if "@" in (found["query"] or ""):  # the end of a password, more likely than an option
            raise AddressError(_ESCAPES)
        if any("=" not in option for option in (found["query"] or "x=").split("&")):
            raise AddressError(f"after ? there are options, each name=value; {_ESCAPES}")
        if scheme == "unix":
            if place and not place.endswith("@"):
                raise AddressError(f"a Unix socket has no host; {_ESCAPES}")
            return cls("server", (), "", url)
        if scheme not in _KINDS:
            raise AddressError("it begins with no scheme that is known here")
        kind, plain_scheme = _KINDS[scheme]
        user, at, places = place.rpartition("@")
        if "@" in user or "@" in path:
            raise AddressError(_ESCAPES)
        hosts = tuple(_host(one, _PORTS[kind]) for one in places.split(","))
        if kind == "server" and len(hosts) > 1:
            raise AddressError(
                "it has several hosts: for these write redis+sentinel://host,host/service or redis+cluster://host,host"
            )
        service, database = _service(path) if kind == "sentinel" else ("", path)
        database = _database(database)
        if kind == "cluster" and database.strip("/0"):
            raise AddressError("a cluster has no database but 0")
        query = f"?{found['query']}" if found["query"] else ""
        first = places.partition(",")[0]
        return cls(kind, hosts, service, f"{plain_scheme}://{user}{at}{first}{database}{query}")


def _host(place: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(place)
    if found is None or int(found["port"] or 0) > 65_535:
        raise AddressError(f"its port is not a number from 0 to 65535; {_ESCAPES}")
    name = unquote(found["name"]).strip("[]")
    if impossible_host(name):
        raise AddressError("no host can have that name: the parts between its dots have 1 to 63 characters")
    return name or "localhost", int(found["port"] or default_port)


def _service(path: str) -> tuple[str, str]:
    service, slash, database = path.removeprefix("/").partition("/")
    if not service:
        raise AddressError("it names no service: redis+sentinel://host:26379,host:26379/service")
    return unquote(service), slash + database


def _database(path: str) -> str:
    if not re.fullmatch(r"/?|/[0-9]+/?", path):
        raise AddressError("its database is not a number, such as 0 in redis://host:6379/0")
    return path.removesuffix("/")
