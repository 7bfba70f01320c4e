"""`conquiet verify`: checks whether conquiet's guarantees hold on your server."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.declaration import verb
from conquiet.cli.exits import Exit
from conquiet.cli.output import session

if TYPE_CHECKING:
    from conquiet.verify import Verdict

__all__ = ["add_to"]

_SIGNS = {"kept": "ok", "broken": "BROKEN", "skipped": "skipped", "note": "note"}


def add_to(app: typer.Typer) -> None:
    verb(
        app,
        "verify",
        "verify --dsn postgresql://user:password@host/database",
        "verify --dsn redis://host:6379/0 --work 5000 --kills 50 --cuts 1000 --signals 20 --cancels 1000",
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
    cuts: Annotated[
        int, typer.Option("--cuts", help="Connections to cut (PostgreSQL, Redis; not with TLS).", min=0)
    ] = 40,
    signals: Annotated[
        int,
        typer.Option(
            "--signals",
            help="Times a worker is paused beyond its lease, and workers to stop with SIGTERM.",
            min=0,
        ),
    ] = 5,
    cancels: Annotated[int, typer.Option("--cancels", help="asyncio calls to cancel.", min=0)] = 100,
) -> int:
    """Test the guarantees on your own server, without faults and with faults of its clients.

    The test uses its own scratch space (a schema, a file, keys that begin with conquiet-verify-) and removes it. Worker
    processes are killed, paused and terminated, connections are cut by a proxy on this machine; the server itself and
    its other clients are not affected. It takes 20 to 60 seconds; larger numbers take longer.
    """
    from conquiet.cli.stores import store_dsn
    from conquiet.verify import Finding
    from conquiet.verify import verify as put_to_the_test

    def tell(finding: Finding) -> None:
        seconds = f" ({finding.seconds:.1f} s)" if finding.kind in ("kept", "broken") else ""
        session.note(f"{_SIGNS[finding.kind]:<8} {finding.name}: {finding.detail}{seconds}")

    verdict = put_to_the_test(
        store_dsn(dsn), work=work, kills=kills, cuts=cuts, signals=signals, cancels=cancels, tell=tell
    )
    session.result(
        {"ok": verdict.ok, "findings": [asdict(one) for one in verdict.findings]}, _summary(verdict)
    )
    return Exit.DONE if verdict.ok else Exit.REFUSED


def _summary(verdict: Verdict) -> str:
    kinds = Counter(finding.kind for finding in verdict.findings)
    checked = kinds["kept"] + kinds["broken"]
    left_out = f", {kinds['skipped']} skipped" if kinds["skipped"] else ""
    if kinds["broken"]:
        return f"{kinds['broken']} of {checked} promises are BROKEN{left_out}"
    return f"all {checked} promises are kept{left_out}"
