"""Schema versions and the steps between them, with the same rules for every back end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conquiet.errors import JobConfigError, SchemaVersionError
from conquiet.jobs.backends.sql_files import Migration

__all__ = ["check_version", "steps", "stored_version"]


def stored_version(rows: Sequence[Any], where: str) -> int:
    """Return the version in the table `conquiet_schema`. `rows` are its rows, or the first two of them."""
    if len(rows) == 1 and len(rows[0]) == 1 and type(rows[0][0]) is int and rows[0][0] >= 0:
        return int(rows[0][0])
    found = "no row" if not rows else "several rows" if len(rows) > 1 else f"{ascii(tuple(rows[0]))[:60]}"
    raise SchemaVersionError(
        f"{where} has a table conquiet_schema with {found}; one row with the version of the schema was expected. "
        "Nothing was changed: restore it from a backup, or, if no job is to be kept, drop the tables conquiet_schema "
        "and conquiet_jobs and open the store again"
    )


def check_version(found: int | None, newest: int, where: str, migrate: str) -> bool:
    """Return whether the schema has to be created now. Raise SchemaVersionError for any version but the newest.

    `found` is None for a database without our schema.
    """
    if migrate not in ("auto", "never"):
        raise JobConfigError(f"migrate must be 'auto' or 'never', not {migrate!r}")
    if found == newest:
        return False
    if found is None:
        if migrate == "auto":
            return True
        empty = f"{where} has no job tables"
        raise SchemaVersionError(
            f"{empty}: call conquiet.jobs.migrate(dsn), or open the store with migrate='auto'", found=empty
        )
    if found < newest:
        old = f"{where} has schema version {found}, this release needs {newest}"
        raise SchemaVersionError(
            f"{old}: stop the workers and call conquiet.jobs.migrate(dsn)", found=old, in_use=True
        )
    raise SchemaVersionError(
        f"{where} has schema version {found}, newer than the {newest} of this release: upgrade conquiet"
    )


def steps(migrations: list[Migration], found: int, target: int | None) -> list[tuple[str, str, int]]:
    """Return (name, SQL, new version) for each step from `found` to `target` (None: the newest), up or down."""
    newest = migrations[-1].version
    target = newest if target is None else target
    if type(target) is not int or not 0 <= target <= newest:
        raise JobConfigError(
            f"there is no schema version {target!r}; this release knows 0 (none) to {newest}"
        )
    if found > newest:
        raise SchemaVersionError(
            f"the database has schema version {found}, newer than the {newest} of this release: upgrade conquiet"
        )
    if target >= found:
        return [(step.name, step.up, step.version) for step in migrations if found < step.version <= target]
    down = [step for step in reversed(migrations) if target < step.version <= found]
    return [(f"{step.name} (down)", step.down, step.version - 1) for step in down]
