"""`conquiet verify`: whether a server of yours keeps what conquiet promises."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from conquiet.cli.exits import Exit
from conquiet.cli.output import session
from conquiet.cli.verbs import verb

__all__ = ["add_to"]

_SIGNS = {"kept": "ok", "broken": "BROKEN", "note": "note"}


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "verify",
        "verify --dsn postgresql://user:password@host/database",
        "verify --dsn redis://host:6379/0 --kills 50 --work 5000",
    )(verify)


def verify(
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            help="The job store, or a Redis URL (CONQUIET_DSN, DATABASE_URL).",
            metavar="DSN",
            show_default=False,
        ),
    ] = None,
    work: Annotated[int, typer.Option("--work", help="Jobs or messages per check.", min=10)] = 500,
    kills: Annotated[int, typer.Option("--kills", help="Worker processes to kill -9.", min=0)] = 10,
) -> int:
    """Put the guarantees to the test on your own server.

    It works in a corner of its own (a schema, a file, streams that begin with conquiet-verify-) and removes it. Worker
    processes are killed; the server is not touched.
    """
    from conquiet.cli.stores import store_dsn
    from conquiet.testing.verification import Finding
    from conquiet.testing.verification import verify as put_to_the_test

    def tell(finding: Finding) -> None:
        seconds = f" ({finding.seconds:.1f} s)" if finding.kind != "note" else ""
        session.note(f"{_SIGNS[finding.kind]:<7} {finding.name}: {finding.detail}{seconds}")

    verdict = put_to_the_test(store_dsn(dsn), work=work, kills=kills, tell=tell)
    checked = [finding for finding in verdict.findings if finding.kind != "note"]
    broken = [finding for finding in checked if finding.kind == "broken"]
    text = (
        f"{len(broken)} of {len(checked)} promises are BROKEN"
        if broken
        else f"all {len(checked)} promises are kept"
    )
    session.result({"ok": verdict.ok, "findings": [asdict(one) for one in verdict.findings]}, text)
    return Exit.DONE if verdict.ok else Exit.REFUSED
