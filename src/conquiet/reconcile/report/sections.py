"""The sections of a report: each has a title that states the finding, and a plot or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Final

from conquiet.reconcile import Status
from conquiet.reconcile.report.bars import Part, Stack, bars, level_bars, share_bar, stacked_bars
from conquiet.reconcile.report.curves import Line, Range, line_key, lines, ranges
from conquiet.reconcile.report.figures import JobFigures, Outcomes, ReportFigures, TimesRow, TrustLine
from conquiet.reconcile.report.style import STATUS_CLASSES, STATUS_NAMES
from conquiet.reconcile.report.text import counted, day, duration, named, number, percent

__all__ = ["sections"]

_MEASURES: Final = {
    "first_wait": "wait, first attempt",
    "retry_wait": "wait, retry",
    "processing": "processing",
}


def _overall(figures: ReportFigures) -> str:
    kind = "Verdicts"
    total = figures.total
    if not total.reports:
        return _section(kind, "No report was judged", _nothing("There are no verdicts yet."), wide=True)
    contested = total.share(Status.AFFILIATE_OVERCLAIMED) + total.share(Status.DISCREPANCY_HIGH)
    title = f"{percent(total.share(Status.MATCHED))} of reports matched, {percent(contested)} are contested"
    keys = _key(
        f'<i class="{STATUS_CLASSES[status]}"></i>{name} <b>{percent(total.share(status))}</b>'
        for status, name in STATUS_NAMES.items()
        if total.by_status.get(status)
    )
    plot = share_bar(_parts(total), f"Verdicts on {number(total.reports)} reports", 22)
    note = "Contested: overclaimed or a high discrepancy, by the rules of this run."
    return _section(kind, title, plot + keys, note, wide=True)


def _platforms(figures: ReportFigures) -> str:
    kind = "Verdicts by platform"
    if not figures.platforms:
        return _section(kind, "No platform to compare", _nothing("There are no verdicts yet."))
    rows = [*figures.platforms, *([figures.other_platforms] if figures.other_platforms else [])]
    worst = max(figures.platforms, key=lambda one: one.share(Status.AFFILIATE_OVERCLAIMED))
    share = worst.share(Status.AFFILIATE_OVERCLAIMED)
    if share and len(rows) > 1:
        title = f"Most overclaims on {named(worst.name, 40)}: {percent(share)} of its reports"
    else:
        title = "Share of each verdict" if share else "No platform has an overclaim"
    plot = stacked_bars(
        [Stack(one.name, _parts(one), number(one.reports)) for one in rows], "Verdicts by platform"
    )
    seen = {status for one in rows for status, count in one.by_status.items() if count}
    keys = _key(
        f'<i class="{STATUS_CLASSES[status]}"></i>{name}'
        for status, name in STATUS_NAMES.items()
        if status in seen
    )
    return _section(kind, title, plot + keys)


def _trust(figures: ReportFigures) -> str:
    kind = "Trust over time"
    days = figures.trust_days
    if not days:
        return _section(
            kind, "No change of trust", _nothing("No verdict has changed the trust in an affiliate yet.")
        )
    first, last = days[0], days[-1]
    note = (
        f"{number(last.below_start)} of {number(last.affiliates)} affiliates are below the score they began with. Shown "
        "are those whose trust fell, and rose, the most."
    )
    if first.day == last.day:
        scores = [
            (line.affiliate_id, line.days[-1][1] if line.days else line.start) for line in figures.trust_lines
        ]
        plot = level_bars([("mean of all affiliates", last.mean_score), *scores], "Trust", "trust score")
        title = f"Mean trust is {last.mean_score:.2f}, after one day: {day(last.day)}"
        return _section(kind, title, plot, note)
    change = last.mean_score - first.mean_score
    verb = "rose" if change > 0.005 else "fell" if change < -0.005 else "stayed the same"
    title = f"Mean trust {verb}: {first.mean_score:.2f} on {day(first.day)}, {last.mean_score:.2f} on {day(last.day)}"
    mean = Line("mean of all affiliates", "mean", [(one.day, one.mean_score) for one in days])
    single = [
        Line(line.affiliate_id, f"l{place % 6}", _since(first.day, line))
        for place, line in enumerate(figures.trust_lines)
    ]
    key = f"{line_key('mean')}mean of all affiliates <b>{last.mean_score:.2f}</b>"
    keys = (f"{line_key(line.css)}{named(line.label, 26)} <b>{line.points[-1][1]:.2f}</b>" for line in single)
    return _section(kind, title, lines([*single, mean], kind, "trust score") + _key([key, *keys]), note)


def _affiliates(figures: ReportFigures) -> str:
    kind = "Affiliates with the worst rates"
    if not figures.total.reports:
        return _section(kind, "No affiliate to compare", _nothing("There are no verdicts yet."), wide=True)
    if not figures.affiliates:
        return _section(
            kind,
            "No affiliate is contested",
            _nothing("No report was overclaimed or far below the platform."),
            wide=True,
        )
    worst = figures.affiliates[0]
    contested = worst.share(Status.AFFILIATE_OVERCLAIMED) + worst.share(Status.DISCREPANCY_HIGH)
    title = f"{named(worst.name, 40)}: {percent(contested)} of {counted(worst.reports, 'report')} contested"
    head = (
        '<tr><th>Affiliate</th><th>Reports</th><th class="mini">Verdicts</th><th>Overclaimed</th>'
        "<th>High discr.</th><th>Trust</th></tr>"
    )
    rows = "".join(_affiliate_row(one) for one in figures.affiliates)
    note = (
        "Ordered by the share that is contested for certain (the lower end of its 95 % interval): one bad report of one "
        "proves little."
    )
    return _section(kind, title, f"<table>{head}{rows}</table>", note, wide=True)


def _affiliate_row(one: Outcomes) -> str:
    mini = share_bar(_parts(one), f"Verdicts on {number(one.reports)} reports")
    score = "–" if one.score is None else f"{_score_bar(one.score)}{one.score:.2f}"
    return (
        f'<tr><td class="name">{named(one.name, 48)}</td><td>{number(one.reports)}</td><td class="mini">{mini}</td>'
        f"<td>{percent(one.share(Status.AFFILIATE_OVERCLAIMED))}</td>"
        f'<td>{percent(one.share(Status.DISCREPANCY_HIGH))}</td><td class="score">{score}</td></tr>'
    )


def _score_bar(score: float) -> str:
    width = max(0.0, min(1.0, score)) * 100
    return (
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="8"/>'
        f'<rect class="bar" width="{width:.0f}" height="8"/></svg>'
    )


def _times(figures: ReportFigures) -> str:
    kind = "Waiting and processing times of jobs"
    if figures.jobs is None or not figures.jobs.times:
        why = "No job has been attempted yet." if figures.jobs else "No job history was given to this report."
        return _section(kind, "No job history", _nothing(why))
    rows = figures.jobs.times
    slowest = max(rows, key=lambda row: (row.measure == "processing", row.p99))
    title = f"{_measure(slowest).capitalize()} on {named(slowest.queue, 30)}: half within {duration(slowest.p50)}, 99 % within {duration(slowest.p99)}"
    plotted: list[Range] = []
    body = ""
    for queue in dict.fromkeys(row.queue for row in rows):
        plotted.append(Range(queue))
        body += f'<tr class="group"><td colspan="6">{named(queue, 50)}</td></tr>'
        for row in sorted((row for row in rows if row.queue == queue), key=_order):
            plotted.append(Range(_measure(row), (row.p50, row.p90, row.p99)))
            body += (
                f"<tr><td>{_measure(row)}</td><td>{number(row.attempts)}</td>"
                + "".join(f"<td>{duration(value)}</td>" for value in (row.p50, row.p90, row.p99, row.max))
                + "</tr>"
            )
    table = (
        '<table class="times"><tr><th>Queue</th><th>attempts</th><th>p50</th><th>p90</th><th>p99</th><th>longest</th></tr>'
        f"{body}</table>"
    )
    keys = _key(
        [
            '<svg viewBox="0 0 26 12" aria-hidden="true"><circle class="dot p50" cx="13" cy="6" r="4.5"/></svg>half (p50)',
            '<svg viewBox="0 0 26 12" aria-hidden="true"><circle class="dot" cx="13" cy="6" r="4.5"/></svg>90 % (p90)',
            '<svg viewBox="0 0 26 12" aria-hidden="true"><rect class="dot p99" x="8.5" y="1.5" width="9" height="9" rx="1.5"/></svg>99 % (p99)',
        ]
    )
    note = "A delay that was asked for, and that of a retry, is part of the wait."
    return _section(kind, title, ranges(plotted, kind) + keys + table, f"{note} {_ends(figures.jobs)}")


def _ends(jobs: JobFigures) -> str:
    total = sum(jobs.outcomes.values())
    if not total:
        return ""
    ends = sorted(jobs.outcomes.items(), key=lambda item: (-item[1], item[0]))
    return "Attempts: " + ", ".join(f"{number(count)} {named(end, 20)}" for end, count in ends) + "."


def _measure(row: TimesRow) -> str:
    return _MEASURES.get(row.measure, row.measure)


def _order(row: TimesRow) -> int:
    return list(_MEASURES).index(row.measure) if row.measure in _MEASURES else len(_MEASURES)


def _quarantine(figures: ReportFigures) -> str:
    kind = "Quarantine"
    reasons = figures.quarantine_reasons
    if not reasons:
        return _section(kind, "Nothing was put aside", _nothing("Every row could be judged."))
    first, count = reasons[0]
    title = f"{counted(figures.quarantine, 'row')} put aside"
    if len(reasons) > 1:
        share = percent(count / max(1, figures.quarantine))
        title += f", {share} for one reason: {named(first, 70)}"
    return _section(kind, title, bars(reasons, "Reasons for quarantine", "rows"))


def _alerts(figures: ReportFigures) -> str:
    kind = "Alerts"
    if not figures.alerts:
        return _section(kind, "No alert was raised", _nothing("Nothing here needs a person."))
    total = sum(alert.count for alert in figures.alerts)
    first = figures.alerts[0]
    most = f"{named(first.kind.replace('_', ' '), 30)} ({named(first.severity, 20)})"
    title = (
        f"{counted(total, 'alert')}, the most frequent {most}"
        if len(figures.alerts) > 1
        else f"{counted(total, 'alert')}: {most}"
    )
    rows = [(f"{alert.kind.replace('_', ' ')}, {alert.severity}", alert.count) for alert in figures.alerts]
    return _section(kind, title, bars(rows, "Alerts by kind and severity", "alerts"))


def sections(figures: ReportFigures) -> str:
    """Lay out the sections two to a row unless they are wide, then two columns of independent height below."""
    rows = (_overall, _platforms, _trust, _affiliates)
    has_times = figures.jobs is not None and figures.jobs.times
    columns = ((_times,), (_alerts, _quarantine)) if has_times else ((_times, _alerts), (_quarantine,))
    first = "".join(section(figures) for section in rows)
    return first + "".join(
        f'<div class="column">{"".join(section(figures) for section in column)}</div>' for column in columns
    )


def _parts(one: Outcomes) -> list[Part]:
    return [
        Part(one.by_status.get(status, 0), STATUS_CLASSES[status], name)
        for status, name in STATUS_NAMES.items()
    ]


def _since(first: date, line: TrustLine) -> list[tuple[date, float]]:
    """Return the points of the line from the first day of the plot."""
    begins = not line.days or line.days[0][0] > first
    return [*([(first, line.start)] if begins else []), *line.days]


def _key(items: Iterable[str]) -> str:
    return f'<ul class="key">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _nothing(why: str) -> str:
    return f'<p class="nothing">{why}</p>'


def _section(kind: str, title: str, body: str, note: str = "", *, wide: bool = False) -> str:
    css = ' class="wide"' if wide else ""
    more = f"<p>{note}</p>" if note else ""
    return f'<section{css}><div class="kind">{kind}</div><h2>{title}</h2>{body}{more}</section>'
