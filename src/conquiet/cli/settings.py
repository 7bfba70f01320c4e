"""Where a command finds its settings: flag, then CONQUIET_*, then DATABASE_URL or REDIS_URL, then conquiet.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from conquiet.errors import SettingsError

__all__ = [
    "APP",
    "CONCURRENCY",
    "DSN",
    "GROUP",
    "METRICS_PORT",
    "QUEUES",
    "REDIS_URL",
    "SETTINGS",
    "Found",
    "Setting",
    "Settings",
]

_FILE = "conquiet.toml"
_FILE_VARIABLE = "CONQUIET_CONFIG"


@dataclass(frozen=True)
class Setting:
    key: str
    flag: str
    variables: tuple[str, ...]
    what: str
    example: str
    kind: type[str] | type[int] = str


DSN = Setting("dsn", "--dsn", ("CONQUIET_DSN", "DATABASE_URL"), "job store", "sqlite:///jobs.db")
REDIS_URL = Setting(
    "redis_url",
    "--redis-url",
    ("CONQUIET_REDIS_URL", "REDIS_URL"),
    "Redis server",
    "redis://localhost:6379/0",
)
GROUP = Setting("group", "--group", ("CONQUIET_GROUP",), "consumer group", "billing")
APP = Setting("app", "APP", ("CONQUIET_APP",), "app", "shop.tasks:app")
QUEUES = Setting("queues", "--queues", ("CONQUIET_QUEUES",), "queues", "emails:10,reports")
CONCURRENCY = Setting("concurrency", "--concurrency", ("CONQUIET_CONCURRENCY",), "concurrency", "8", int)
METRICS_PORT = Setting(
    "metrics_port", "--port", ("CONQUIET_METRICS_PORT",), "port for the metrics", "9464", int
)

SETTINGS = {
    setting.key: setting for setting in (DSN, REDIS_URL, GROUP, APP, QUEUES, CONCURRENCY, METRICS_PORT)
}


class Found(NamedTuple):
    value: Any
    origin: str  # for messages: "--dsn", "DATABASE_URL", "dsn in conquiet.toml"


class Settings:
    """The settings of this command. `used` holds those that were looked up, so that errors can name their origin."""

    def __init__(self, environment: Mapping[str, str] | None = None, file: str | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self.file = file
        self.used: dict[str, Found] = {}

    def need(self, setting: Setting, flag: Any = None) -> Any:
        """The value; a SettingsError lists every place where it can be set."""
        found = self.find(setting, flag)
        if found is None:
            # The variables are named, too: a URL often contains a password, which does not belong on a command line.
            given = [f"give {setting.flag} {setting.example}", f"or set {' or '.join(setting.variables)}"]
            given.append(f"or write {setting.key} = {_toml(setting)} into {self.file or _FILE}")
            raise SettingsError(f"no {setting.what} is given: {', '.join(given)}")
        return found.value

    def find(self, setting: Setting, flag: Any = None) -> Found | None:
        found = self._find(setting, flag)
        if found is not None:
            self.used[setting.key] = found
        return found

    def _find(self, setting: Setting, flag: Any) -> Found | None:
        if flag is not None:
            if flag == "":
                raise SettingsError(f"{setting.flag} is empty: give a value such as {setting.example}")
            return Found(flag, setting.flag)
        for variable in setting.variables:
            if text := self._environment.get(variable):  # an empty variable counts as unset
                return Found(_of_text(setting, text, variable), variable)
        path, written = self.written()
        if setting.key in written:
            return Found(written[setting.key], f"{setting.key} in {path}")
        return None

    def written(self) -> tuple[Path, dict[str, Any]]:
        """The file and its contents; empty if there is no file and none was named."""
        named = self.file or self._environment.get(_FILE_VARIABLE)
        path = Path(named or _FILE)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if named:
                origin = "--config" if self.file else _FILE_VARIABLE
                raise SettingsError(f"there is no file {path}, which {origin} names") from None
            return path, {}
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} cannot be read: {error}") from None
        try:
            written = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path} is not TOML: {error}") from None
        _check(path, written)
        return path, written


def _check(path: Path, written: dict[str, Any]) -> None:
    for key, value in written.items():
        setting = SETTINGS.get(key)
        if setting is None:
            raise SettingsError(f"{path} has an unknown key {key!r}: it may have {', '.join(SETTINGS)}")
        if type(value) is not setting.kind or value == "":
            raise SettingsError(f"{path}: {key} is written as {key} = {_toml(setting)}")


def _of_text(setting: Setting, text: str, origin: str) -> str | int:
    try:
        return setting.kind(text)
    except ValueError:
        raise SettingsError(f"{origin} must be a whole number, not {text!r}") from None


def _toml(setting: Setting) -> str:
    return setting.example if setting.kind is int else f'"{setting.example}"'
