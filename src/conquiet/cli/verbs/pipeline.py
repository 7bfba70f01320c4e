"""`conquiet pipeline`: generates a sample, runs the whole pipeline on it, and draws a page of the results."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import DsnFlag, group, verb
from conquiet.cli.exits import Exit
from conquiet.cli.output import session
from conquiet.cli.spark_session import MasterFlag, session_of
from conquiet.errors import MissingDependencyError, SettingsError

if TYPE_CHECKING:
    from conquiet.demo import Sample

__all__ = ["app"]

app = group("The sample pipeline: generate, run, report.")

Reports = Annotated[int, typer.Option("--reports", help="How many reports.", min=1)]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same reports.")]


@verb(app, "generate", "pipeline generate --reports 1000 --out sample", "pipeline generate --seed 8 --json")
def generate(
    reports: Reports = 50_000,
    seed: Seed = 7,
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.", metavar="FOLDER")] = Path(
        "sample"
    ),
) -> None:
    """Write sample reports and the platforms' metrics: for `reconcile batch`, or to enqueue."""
    from conquiet.demo import Sample

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"the folder {out} cannot be created ({error.strerror}): give another --out"
        ) from None
    sample = Sample(reports, seed)
    paths = {"reports": out / "reports.jsonl", "metrics": out / "metrics.parquet"}
    try:
        _write(sample, paths["reports"], paths["metrics"])
    except ImportError as error:
        raise MissingDependencyError(f'{error}: pip install "conquiet[spark]"') from None
    truth = {name: _plain(value) for name, value in vars(sample.truth).items()}
    named = {name: str(path) for name, path in paths.items()}
    text = f"{sample.truth.entries:,} entries in {named['reports']}, the platforms' metrics in {named['metrics']}"
    session.result({**named, "truth": truth}, text)


@verb(app, "run", "pipeline run --reports 2000", "pipeline run --out out --json")
def run(
    reports: Reports = 50_000,
    seed: Seed = 7,
    out: Annotated[Path, typer.Option("--out", help="The folder for the results.", metavar="FOLDER")] = Path(
        "out"
    ),
) -> None:
    """Run the whole pipeline on a sample, with private servers, like `make run`.

    Every figure is checked against the figures of the generator; a difference fails the run.
    """
    from conquiet.demo import run_sample

    if not session.json:
        raise typer.Exit(run_sample(reports, out, seed))
    with redirect_stdout(sys.stderr):  # the progress messages are for people
        code = run_sample(reports, out, seed)
    session.result({"right": code == Exit.DONE, "reports": reports, "out": str(out)})
    raise typer.Exit(code)


@verb(
    app, "report", "pipeline report --tables out", "pipeline report --tables judged --page page.html --jobs"
)
def report(
    tables: Annotated[
        str, typer.Option("--tables", help="The output folder of a reconciliation.", metavar="FOLDER")
    ] = "out",
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            help="The page to write; default: TABLES/report.html.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="The title of the page.")] = "Reconciliation",
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Add waiting and processing times from the job store.")
    ] = False,
    dsn: DsnFlag = None,
    master: MasterFlag = None,
) -> None:
    """Draw the results of a reconciliation as one self-contained HTML page."""
    if "://" not in tables and not Path(tables).is_dir():
        raise SettingsError(f"there is no folder {tables}, which --tables names")
    if dsn is not None and not jobs:
        raise SettingsError("--dsn is for the times of jobs: add --jobs, or omit --dsn")
    target = page or Path(tables) / "report.html"
    if not target.parent.is_dir():
        raise SettingsError(f"there is no folder {target.parent} for the page: give another --page")
    from conquiet.reconcile.report import collect_figures, read_outputs, write_report

    with (
        TemporaryDirectory(prefix="conquiet-") as aside,
        session_of("conquiet pipeline report", master) as spark,
    ):
        more = _job_figures(spark, dsn, f"{aside}/attempts") if jobs else {}
        figures = collect_figures(read_outputs(spark, tables), title=title, **more)
    written = write_report(target, figures)
    text = f"{figures.total.reports:,} reports drawn in {written}"
    session.result({"page": str(written), "reports": figures.total.reports}, text)


def _write(sample: Sample, reports: Path, metrics: Path) -> None:
    from conquiet.demo import MetricsFile, line_of

    with reports.open("w", encoding="utf-8") as lines, MetricsFile(metrics) as table:
        for chunk in sample:
            lines.writelines(f"{line_of(entry)}\n" for entry in chunk.entries)
            table.write(chunk.metrics)


def _plain(value: Any) -> Any:
    """Counters as JSON: its keys must be strings."""
    if not isinstance(value, dict):
        return value
    return {
        " ".join(map(str, key)) if isinstance(key, tuple) else str(key): count for key, count in value.items()
    }


def _job_figures(spark: Any, dsn: str | None, folder: str) -> dict[str, Any]:
    from conquiet.cli.stores import opened_store
    from conquiet.reconcile.report import job_attempts

    with opened_store(dsn) as store:
        return {"attempts": job_attempts(spark, store, folder), "queues": store.stats()}
