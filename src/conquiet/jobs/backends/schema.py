"""Schema versions and the steps between them, with the same rules for every back end.

A schema is used by programs of several releases while these are replaced. So it says itself which is the oldest version
whose programs work with it: a step that only adds (columns with defaults, indexes) leaves that as it was, and the programs
that run go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from conquiet.errors import JobConfigError, SchemaVersionError
from conquiet.jobs.backends.sql_files import Migration
from conquiet.observe import SafeLogger

__all__ = ["Step", "Stored", "check_version", "steps", "stored_version"]

_log = SafeLogger("conquiet.jobs")


class Stored(NamedTuple):
    """What the table `conquiet_schema` says: the version, and the oldest one whose programs work with it."""

    version: int
    oldest: int


class Step(NamedTuple):
    name: str
    sql: str
    version: int  # afterwards
    oldest: int


def stored_version(rows: Sequence[Any], where: str) -> Stored | None:
    """Return what the table `conquiet_schema` says, None for version 0. `rows` are its rows, or the first two of them."""
    if len(rows) == 1 and all(_is_version(value) for value in rows[0]):
        if len(rows[0]) == 1:  # made by a release without `oldest`
            return Stored(rows[0][0], rows[0][0]) if rows[0][0] else None
        if len(rows[0]) == 2 and rows[0][1] <= rows[0][0]:
            return Stored(*rows[0]) if rows[0][0] else None
    found = "no row" if not rows else "several rows" if len(rows) > 1 else f"{ascii(tuple(rows[0]))[:60]}"
    raise SchemaVersionError(
        f"{where} has a table conquiet_schema with {found}; one row with the version of the schema was expected. "
        "Nothing was changed: restore it from a backup, or, if no job is to be kept, drop the tables conquiet_schema "
        "and conquiet_jobs and open the store again"
    )


def check_version(found: Stored | None, migrations: list[Migration], where: str, migrate: str) -> bool:
    """Return whether the schema has to be created now. Raise SchemaVersionError for a version that does not fit.

    `found` is None for a database without our schema.
    """
    if migrate not in ("auto", "never"):
        raise JobConfigError(f"migrate must be 'auto' or 'never', not {migrate!r}")
    if found is None:
        if migrate == "auto":
            return True
        empty = f"{where} has no job tables"
        raise SchemaVersionError(
            f"{empty}: call conquiet.jobs.migrate(dsn), or open the store with migrate='auto'", found=empty
        )
    version, newest = found.version, migrations[-1].version
    if found.oldest <= newest <= version:
        if version > newest:
            _log.info(
                "%s has schema version %d, newer than the %d of this release, which works with it",
                where,
                version,
                newest,
            )
        return False
    if version < newest:
        old = f"{where} has schema version {version}, this release needs {newest}"
        in_use = any(step.oldest > version for step in migrations if step.version > version)
        raise SchemaVersionError(
            f"{old}: {'stop the workers and ' if in_use else ''}call conquiet.jobs.migrate(dsn)",
            found=old,
            in_use=in_use,
        )
    raise SchemaVersionError(
        f"{where} has schema version {version}, newer than the {newest} of this release: upgrade conquiet"
    )


def steps(migrations: list[Migration], found: Stored | None, target: int | None) -> list[Step]:
    """Return the steps from `found` to `target` (None: the newest), up or down."""
    newest = migrations[-1].version
    if (type(target) is not int and target is not None) or not 0 <= (target or 0) <= newest:
        raise JobConfigError(
            f"there is no schema version {target!r}; this release knows 0 (none) to {newest}"
        )
    version, oldest = found or (0, 0)
    if version > newest:
        if target is None and oldest <= newest:
            return []
        raise SchemaVersionError(
            f"the database has schema version {version}, newer than the {newest} of this release: upgrade conquiet"
        )
    target = newest if target is None else target
    if target >= version:
        return [
            Step(step.name, step.up, step.version, step.oldest)
            for step in migrations
            if version < step.version <= target
        ]
    after = {step.version: step.oldest for step in migrations}
    return [
        Step(f"{step.name} (down)", step.down, step.version - 1, after.get(step.version - 1, 0))
        for step in reversed(migrations)
        if target < step.version <= version
    ]


def _is_version(value: Any) -> bool:
    return type(value) is int and value >= 0
