"""`conquiet doctor`: what is installed and set, what is missing, and how to fix it."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import typer

from conquiet.cli.declaration import DsnFlag, RedisFlag, verb
from conquiet.cli.exits import Exit, advice, without_secrets
from conquiet.cli.output import session
from conquiet.cli.settings import DSN, REDIS_URL
from conquiet.errors import ConquietError, MissingDependencyError
from conquiet.redaction import redact_dsn

__all__ = ["add_to"]

_FOR = {
    "redis": "Redis Streams (conquiet.queue)",
    "postgres": "jobs on PostgreSQL",
    "spark": "Spark (conquiet.spark)",
    "otel": "traces",
    "prometheus": "metrics",
    "reconcile": "reconciliation with a database",
    "web": "the HTTP intake of reports",
    "cli": "this command",
    "embedded": "private servers, where the machine has none",
    "java": "Java for Spark, where the machine has none",
}


class Check(NamedTuple):
    name: str
    status: str  # "ok"; "absent": missing, but optional; "wrong": must be fixed
    found: str
    fix: str = ""


def add_to(app: typer.Typer) -> None:
    verb(app, "doctor", "doctor", "doctor --dsn postgresql://app@localhost/shop --json")(doctor)


def doctor(dsn: DsnFlag = None, redis_url: RedisFlag = None) -> None:
    """Show what is found, what is missing, and how to fix it.

    A missing optional part, such as Spark, is not a failure. A setting that does not work is.
    """
    checks = [*_python(), *_extras(), *_programs(), *_settings(dsn, redis_url)]
    wrong = [check for check in checks if check.status == "wrong"]
    rows = [(check.status, check.name, check.found, check.fix) for check in checks]
    verdict = f"{len(wrong)} to fix" if wrong else "everything that is set works"
    session.result(
        {"ok": not wrong, "checks": [check._asdict() for check in checks]},
        session.table(("", "part", "found", "how to fix it"), rows),
        verdict,
    )
    raise typer.Exit(Exit.REFUSED if wrong else Exit.DONE)


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Check("python", "ok", found)  # on a Python that is too old, this package does not run at all


def _extras() -> Iterator[Check]:
    """The requirements of each extra of conquiet, read from the metadata of the installed package."""
    from importlib import metadata

    wanted: dict[str, list[tuple[str, str]]] = {}
    for line in metadata.requires("conquiet") or ():
        match = re.match(r"([\w.-]+)(?:\[[^]]*])?\s*(?:.*?>=([\d.]+))?.*;.*extra == ['\"](\w+)['\"]", line)
        if match and match[3] in _FOR:
            wanted.setdefault(match[3], []).append((match[1], match[2] or "0"))
    for extra, packages in wanted.items():
        states = [_package(name, least) for name, least in packages]
        found = ", ".join(text for text, _ in states)
        name = f"{extra}: {_FOR[extra]}"
        if all(fits for _, fits in states):
            yield Check(name, "ok", found)
        else:
            yield Check(name, "absent", found, f'pip install "conquiet[{extra}]"')


def _package(name: str, least: str) -> tuple[str, bool]:
    from importlib import metadata

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"no {name}", False
    fits = _numbers(version) >= _numbers(least)
    return f"{name} {version}" + ("" if fits else f", older than {least}"), fits


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _programs() -> Iterator[Check]:
    from conquiet.embedded import find_java, find_postgres, find_redis

    finders: dict[str, Callable[[], Any]] = {
        "redis-server or valkey-server": find_redis,
        "postgres": find_postgres,
        "java": find_java,
    }
    for name, find in finders.items():
        try:
            yield Check(name, "ok", find().describe())
        except MissingDependencyError as error:
            text = " ".join(str(error).split())
            # A variable that names an unusable program is a mistake: wrong, not merely absent.
            state, shown = ("wrong", text) if error.chosen else ("absent", "")
            yield Check(name, state, shown, error.install or text)


def _settings(dsn: str | None, redis_url: str | None) -> Iterator[Check]:
    try:
        path, written = session.settings.written()
    except ConquietError as error:
        yield Check("settings", "wrong", str(error), "correct that file")
        return
    if written:
        yield Check(f"settings in {path}", "ok", ", ".join(written))
    else:
        yield Check(
            f"settings in {path}",
            "absent",
            "no such file",
            f'optional, for settings that you repeat: {DSN.key} = "{DSN.example}"',
        )
    for setting, look, flag in ((DSN, _store, dsn), (REDIS_URL, _redis, redis_url)):
        found = session.settings.find(setting, flag)
        if found is None:
            fix = f"{setting.flag} {setting.example}, or {' or '.join(setting.variables)}"
            yield Check(setting.what, "absent", "none is set", fix)
            continue
        name = f"{setting.what} (from {found.origin})"
        try:
            yield look(name, flag, str(found.value))
        except ConquietError as error:
            text = without_secrets(advice(error, session.settings.used), session.settings.used)
            what, _, fix = text.rpartition(" (")
            yield Check(name, "wrong", what, fix.rstrip(")")) if what else Check(name, "wrong", text)


def _store(name: str, flag: str | None, dsn: str) -> Check:
    from conquiet.cli.stores import opened_store
    from conquiet.jobs import migration_plan

    where = redact_dsn(dsn)
    if steps := [step for step, _ in migration_plan(dsn)]:
        return Check(
            name, "wrong", f"{where}: reached, but {', '.join(steps)} not applied", "conquiet migrate"
        )
    with opened_store(flag) as store:
        counts = store.stats()
    return Check(
        name,
        "ok",
        f"{where}: {len(counts)} queues, {sum(found.failed for found in counts.values())} jobs Failed",
    )


def _redis(name: str, flag: str | None, url: str) -> Check:
    from conquiet.cli.redis_view import RedisLook

    with RedisLook(flag) as look:
        server, kept = look.info("server"), look.info("persistence")
        version = server.get("valkey_version") or server.get("redis_version", "?")
        flavour = "valkey" if "valkey_version" in server else "redis"
    durable = kept.get("aof_enabled") == "1"
    found = f"{redact_dsn(url)}: {flavour} {version}, append-only file {'on' if durable else 'off'}"
    if _numbers(version) < [7]:
        return Check(name, "wrong", found, "use Redis 7 or newer, or Valkey")
    if not durable:
        return Check(name, "ok", found, "messages may be lost if the server fails: set appendonly yes")
    return Check(name, "ok", found)
