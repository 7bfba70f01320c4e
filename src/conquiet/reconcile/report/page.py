"""`report.html`: the figures as one self-contained HTML file."""

from __future__ import annotations

import os
import secrets
from datetime import UTC
from html import escape
from pathlib import Path

from conquiet.reconcile import Status
from conquiet.reconcile.report.figures import ReportFigures
from conquiet.reconcile.report.sections import sections
from conquiet.reconcile.report.style import CSS
from conquiet.reconcile.report.text import counted, cut, day, named, number, percent

__all__ = ["report_html", "write_report"]

# A second line of defence: the browser loads and runs nothing, whatever text gets into the page.
_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(path: str | os.PathLike[str], figures: ReportFigures) -> Path:
    """Write the report to `path` atomically: readers see the old file or the new one, never a part of it."""
    target = Path(path)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with aside.open("x", encoding="utf-8") as file:
            file.write(report_html(figures))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return target


def report_html(figures: ReportFigures) -> str:
    """Return the page as text."""
    cards = "".join(
        f'<div class="figure {css}"><div class="what">{what}</div><div class="value">{value}</div>'
        f'<div class="more">{more}</div></div>\n'
        for what, value, more, css in _headline(figures)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_NOTHING_ELSE}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(cut(figures.title, 120))}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<header><h1>{named(figures.title, 120)}</h1>\n<p>{_subtitle(figures)}</p></header>\n"
        f'<div class="figures">\n{cards}</div>\n<main>\n{sections(figures)}\n</main>\n'
        "<footer>A report counts once, by the verdict of its newest attempt. Days are in UTC. Point at a bar, a line "
        "or a shortened name to see all of it.</footer>\n</body>\n</html>\n"
    )


def _subtitle(figures: ReportFigures) -> str:
    period = ""
    if days := figures.trust_days:
        first, last = days[0].day, days[-1].day
        period = f" · trust from {day(first)} to {day(last)}" if first != last else ""
    made_at = figures.made_at.astimezone(UTC)
    return f"made on {day(made_at)}, {made_at:%H:%M} UTC{period}"


def _headline(figures: ReportFigures) -> list[tuple[str, str, str, str]]:
    """Return tuples of label, figure, remark (all HTML) and whether the figure is good or bad."""
    total = figures.total
    overclaimed = total.by_status.get(Status.AFFILIATE_OVERCLAIMED, 0)
    matched = total.by_status.get(Status.MATCHED, 0)
    alerts = sum(alert.count for alert in figures.alerts)
    critical = sum(alert.count for alert in figures.alerts if alert.severity == "critical")
    rows = total.reports + figures.quarantine
    good = "good" if rows else ""  # without reports, nothing is marked as good
    cards = [
        (
            "Reports judged",
            number(total.reports),
            f"{counted(figures.affiliates_in_all, 'affiliate')}, {counted(figures.platforms_in_all, 'platform')}",
            "",
        ),
        ("Matched", percent(total.share(Status.MATCHED)), counted(matched, "report"), ""),
        (
            "Overclaimed",
            percent(total.share(Status.AFFILIATE_OVERCLAIMED)),
            counted(overclaimed, "report"),
            "bad" if overclaimed else good,
        ),
        (
            "Alerts",
            number(alerts),
            f"{number(critical)} of them critical" if alerts else "none was raised",
            "bad" if critical else "" if alerts else good,
        ),
        (
            "Quarantined",
            number(figures.quarantine),
            f"{percent(figures.quarantine / rows)} of what came in"
            if figures.quarantine
            else "no row was put aside",
            "" if figures.quarantine else good,
        ),
        (
            "Waiting for another attempt",
            number(figures.pending),
            f"{counted(figures.retries, 'retry', 'retries')} scheduled, {number(figures.judged_again)} judged again",
            "" if figures.pending else good,
        ),
        _lost(figures.lost),
    ]
    if figures.jobs is not None and figures.jobs.queues:
        failed = sum(one.failed for one in figures.jobs.queues)
        open_jobs = sum(one.ready + one.delayed + one.in_flight + one.expired for one in figures.jobs.queues)
        remark = "wait for a person" if failed else "none waits for a person"
        cards.append(
            (
                "Jobs failed",
                number(failed),
                f"{remark}; {number(open_jobs)} still open",
                "bad" if failed else "good",
            )
        )
    return cards


def _lost(lost: int | None) -> tuple[str, str, str, str]:
    if lost is None:
        return "Lost", "–", "was not counted", ""
    remark = (
        "entries gone from the queue before they were read" if lost else "every entry of the queue was read"
    )
    return "Lost", number(lost), remark, "bad" if lost else "good"
