"""`conquiet reconcile`: compares reports with the platforms' metrics, in bulk or as they arrive."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import DsnFlag, GroupFlag, RedisFlag, group, verb
from conquiet.cli.output import session
from conquiet.cli.settings import GROUP, REDIS_URL
from conquiet.cli.spark_session import MasterFlag, format_of, session_of
from conquiet.errors import SettingsError
from conquiet.redaction import redact_dsn

if TYPE_CHECKING:
    from conquiet.reconcile.spark import ReconcileOutputs

__all__ = ["app"]

_TABLES = ("verdicts", "trust", "alerts", "retries", "quarantine")

app = group("Compare affiliate reports with the platforms' metrics, on Spark or as a service.")

Metrics = Annotated[
    str, typer.Option("--metrics", help="The platforms' metrics: Parquet, JSON lines or CSV.", metavar="PATH")
]
MetricsFormat = Annotated[
    str | None,
    typer.Option(
        "--metrics-format", help="parquet, json or csv; default: from the file name.", show_default=False
    ),
]


@verb(
    app,
    "batch",
    "reconcile batch --reports reports.jsonl --metrics metrics.parquet --out judged",
    "reconcile batch --reports r.csv --metrics m.csv --database --dsn sqlite:///judged.db",
    "reconcile batch --reports r.csv --metrics m.csv --out judged --as-of 2026-01-31T14:00:00+00:00 --json",
)
def batch(
    reports: Annotated[
        str, typer.Option("--reports", help="The reports: Parquet, JSON lines or CSV.", metavar="PATH")
    ],
    metrics: Metrics,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", help="Write into a folder, as Parquet by day.", metavar="FOLDER", show_default=False
        ),
    ] = None,
    database: Annotated[
        bool, typer.Option("--database", help="Write into tables of the database --dsn.")
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Append to a folder that has tables, which is otherwise refused.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            show_default=False,
            help="The time of the verdicts, with time zone: then the same inputs give the same outputs.",
        ),
    ] = None,
    reports_format: Annotated[
        str | None,
        typer.Option(
            "--reports-format", help="parquet, json or csv; default: from the file name.", show_default=False
        ),
    ] = None,
    metrics_format: MetricsFormat = None,
    dsn: DsnFlag = None,
    master: MasterFlag = None,
) -> None:
    """Judge files of reports: verdicts, trust, alerts, retries and quarantine."""
    formats = (
        format_of(reports, reports_format, "--reports"),
        format_of(metrics, metrics_format, "--metrics"),
    )
    moment = _moment(as_of)
    from conquiet.cli.stores import store_dsn

    if database == (out is not None):
        raise SettingsError("no output is given: give --out FOLDER, or --database for tables in a database")
    if out is not None and not append and (Path(out) / "verdicts").exists():
        raise SettingsError(f"there are already tables in {out}: give another --out, or --append")
    to = store_dsn(dsn) if out is None else out
    from conquiet.reconcile.spark import (
        JudgedOutputs,
        read_metrics,
        read_reports,
        reconcile_batch,
        save_outputs,
    )

    with session_of("conquiet reconcile batch", master) as spark:
        given = read_reports(spark, reports, formats[0]), read_metrics(spark, metrics, formats[1])
        outputs = reconcile_batch(*given, as_of=moment)
        assert isinstance(outputs, JudgedOutputs)
        outputs.rows.persist()  # the rows counted below are the rows saved
        save_outputs(outputs, to)
        _told(outputs, redact_dsn(to) if database else to)


@verb(
    app,
    "stream",
    "reconcile stream reports --group spark --metrics metrics.parquet --out judged",
    "reconcile stream reports --group spark --metrics m.csv --out judged --once --retry-queue reconciliation",
)
def stream(
    stream: Annotated[str, typer.Argument(help="The Redis stream with reports.", metavar="STREAM")],
    metrics: Metrics,
    out: Annotated[str, typer.Option("--out", help="The folder for the Parquet tables.", metavar="FOLDER")],
    group: GroupFlag = None,
    consumer: Annotated[
        str, typer.Option("--consumer", help="The name of the query in the group; keep it across restarts.")
    ] = "conquiet-reconcile",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="The checkpoint; default: OUT/checkpoint.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Judge the reports that are in the stream now, and exit.")
    ] = False,
    retry_queue: Annotated[
        str | None,
        typer.Option(
            "--retry-queue",
            metavar="NAME",
            show_default=False,
            help="Enqueue further attempts as jobs of this queue in the job store.",
        ),
    ] = None,
    dsn: DsnFlag = None,
    redis_url: RedisFlag = None,
    metrics_format: MetricsFormat = None,
    master: MasterFlag = None,
) -> None:
    """Judge reports as they arrive in a stream; they are acknowledged after the commit.

    SIGTERM or Ctrl-C ends it; started again with the same folders it continues where it stopped.
    """
    from conquiet.cli.redis_view import RedisLook

    kind = format_of(metrics, metrics_format, "--metrics")
    name = str(session.settings.need(GROUP, group))
    with RedisLook(redis_url) as look:
        look.groups(stream)  # a mistyped stream would be created, and the query would wait for ever
    options = {"stream": stream, "group": name, "consumer": consumer}
    options["url"] = session.settings.used[REDIS_URL.key].value
    jobs = None if retry_queue is None else _retry_dsn(dsn)
    from conquiet.reconcile.report import read_outputs
    from conquiet.reconcile.spark import RetryJobs, read_metrics, reconcile_stream
    from conquiet.spark import show_progress
    from conquiet.spark.folders import exists

    with session_of("conquiet reconcile stream", master) as spark:
        with show_progress(spark):
            query = reconcile_stream(
                spark.readStream.format("conquiet").options(**options).load(),
                lambda: read_metrics(spark, metrics, kind),
                output=out,
                checkpoint=checkpoint or f"{out.rstrip('/')}/checkpoint",
                retry_jobs=None if jobs is None or retry_queue is None else RetryJobs(jobs, retry_queue),
                trigger={"availableNow": True} if once else None,
                name=stream,
            )
            _until_stopped(query)
        has_tables = exists(spark, f"{out.rstrip('/')}/verdicts")
        _told(read_outputs(spark, out) if has_tables else None, out)


def _until_stopped(query: Any) -> None:
    """Wait for the end of the query, SIGTERM or Ctrl-C. The next start repeats an interrupted batch, with the same result."""
    import signal

    from conquiet.signals import stop_on_sigterm

    told: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: told.append(True))
    try:
        with stop_on_sigterm(lambda: told.append(True)):
            while not query.awaitTermination(0.5):
                if told:
                    session.note("stopping")
                    query.stop()
                    break
    finally:
        signal.signal(signal.SIGINT, before)


def _retry_dsn(flag: str | None) -> str:
    """Checked before Spark starts: otherwise missing tables would fail only in its tasks."""
    from conquiet.cli.stores import opened_store

    with opened_store(flag) as store:
        return store.dsn


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    except ValueError:
        pass
    raise SettingsError(f"--as-of is a time with time zone, such as 2026-01-31T14:00:00+00:00, not {text!r}")


def _told(tables: ReconcileOutputs | None, where: str) -> None:
    """Print the number of rows of each table, and of verdicts by status."""
    if tables is None:  # the stream had no reports
        session.result({"to": where, "rows": {}, "verdicts": {}}, "no reports")
        return
    rows = {name: getattr(tables, name).count() for name in _TABLES}
    found = {row["status"]: row["count"] for row in tables.verdicts.groupBy("status").count().collect()}
    statuses = dict(sorted(found.items()))
    texts: list[Any] = [f"to {where}: " + ", ".join(f"{name} {count:,}" for name, count in rows.items())]
    if statuses:
        texts.append(session.table(("verdict", "reports"), statuses.items()))
    session.result({"to": where, "rows": rows, "verdicts": statuses}, *texts)
