"""`conquiet migrate`: brings the job tables to the version that this release needs."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet.cli.declaration import DsnFlag, verb
from conquiet.cli.output import session
from conquiet.errors import SettingsError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    verb(app, "migrate", "migrate --dry-run --show-sql", "migrate --dsn sqlite:///jobs.db")(migrate)


def migrate(
    dsn: DsnFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
    ] = False,
    show_sql: Annotated[bool, typer.Option("--show-sql", help="Show the SQL statements.")] = False,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            help="The target version, instead of the newest; 0 removes the tables.",
            min=0,
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm steps down.")] = False,
) -> None:
    """Create or upgrade the job tables.

    The tables of an older release are refused until they have the version that this release needs.
    """
    from conquiet import jobs
    from conquiet.cli.stores import store_dsn

    where = store_dsn(dsn)
    plan = jobs.migration_plan(where, to)
    if not dry_run and not yes and any(name.endswith("(down)") for name, _ in plan):
        raise SettingsError("a step down removes tables and their data: check with --dry-run, then add --yes")
    texts = [f"{'would apply' if dry_run else 'applied'} {name}" for name, _ in plan] or ["nothing to do"]
    if show_sql:
        texts = [f"-- {name}\n{sql.strip()}" for name, sql in plan] or texts
    done = [] if dry_run else list(jobs.migrate(where, to))
    steps = [{"name": name, **({"sql": sql} if show_sql else {})} for name, sql in plan]
    session.result({"dry_run": dry_run, "steps": steps, "taken": done}, *texts)
