"""Plots with scales as inline SVG: values over days, and times on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from conquiet.reconcile.report.bars import WIDTH, hint_of, svg, text_at
from conquiet.reconcile.report.text import cut, duration

__all__ = ["Line", "Range", "line_key", "lines", "ranges"]

# Powers of ten up to seconds, then minutes, hours and days.
_TIMES = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    0.01,
    0.1,
    1,
    10,
    60,
    600,
    3_600,
    36_000,
    86_400,
    864_000,
    8_640_000,
    86_400_000,
)


class Line(NamedTuple):
    """`points` are ordered by day. The value stays the same between two points."""

    label: str
    css: str
    points: Sequence[tuple[date, float]]


class Range(NamedTuple):
    """Seconds. A row with a label and no values is a heading."""

    label: str
    values: tuple[float, float, float] | None = None  # p50, p90, p99


def lines(rows: Sequence[Line], title: str, y_label: str) -> str:
    """Show values from 0 to 1 over at least two days, as steps: a value holds until the next."""
    left, right, top, bottom = 46, WIDTH - 12, 12, 246
    days = [day for row in rows for day, _ in row.points]
    first, last = min(days), max(days)
    span = (last - first).days

    def x_of(day: date) -> float:
        return left + (right - left) * (day - first).days / span

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * max(0.0, min(1.0, value))

    body: list[str] = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = y_of(value)
        css = "axis" if value == 0 else "grid"
        body.append(f'<line class="{css}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body += text_at(left - 7, y + 4, f"{value:.2f}", "end", "soft")
    for day in _day_ticks(first, last):
        anchor = {first: "start", last: "end"}.get(day, "middle")
        body += text_at(x_of(day), bottom + 17, _day_label(day, span), anchor, "soft")
    middle = (top + bottom) / 2
    body.append(f'<g transform="translate(11 {middle:.0f}) rotate(-90)">')
    body += [*text_at(0, 0, y_label, "middle", "soft"), "</g>"]
    body += text_at((left + right) / 2, bottom + 34, "day (UTC)", "middle", "soft")
    for row in rows:
        path = _steps(row, last, x_of, y_of)
        body.append(f'<path class="line {row.css}" d="{path}">{hint_of(row.label)}</path>')
    return svg(bottom + 40, title, body)


def line_key(css: str) -> str:
    """Draw a short sample of a line for the legend."""
    return f'<svg viewBox="0 0 26 12" aria-hidden="true"><path class="line {css}" d="M1 6H25"/></svg>'


def ranges(rows: Sequence[Range], title: str) -> str:
    """Show times from the median to the 99th percentile, all on one logarithmic axis."""
    left, right = 132, WIDTH - 18
    values = [value for row in rows if row.values for value in row.values]
    ticks = _time_ticks(min(values), max(values))
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def x_of(seconds: float) -> float:
        place = (math.log(max(seconds, ticks[0])) - low) / (high - low)
        return left + (right - left) * min(1.0, place)

    bottom = sum(_row_height(row) for row in rows) + 4
    body: list[str] = []
    for tick in ticks:
        x = x_of(tick)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{bottom}"/>')
    for tick in _readable(ticks, x_of):
        body += text_at(x_of(tick), bottom + 15, duration(tick), "middle", "soft")
    body += text_at((left + right) / 2, bottom + 32, "time (logarithmic)", "middle", "soft")
    y = 2
    for row in rows:
        y += _row_height(row)
        if row.values is None:
            body += text_at(0, y - 5, cut(row.label, 40), hint=row.label)
            continue
        middle = y - 11
        p50, p90, p99 = (x_of(value) for value in row.values)
        hint = hint_of(
            f"{row.label}: "
            + ", ".join(f"p{p} {duration(v)}" for p, v in zip((50, 90, 99), row.values, strict=True))
        )
        body += text_at(10, middle + 4, row.label, css="soft")
        body.append(
            f'<line class="range" x1="{p50:.1f}" x2="{p99:.1f}" y1="{middle}" y2="{middle}">{hint}</line>'
        )
        body.append(
            f'<rect class="dot p99" x="{p99 - 4.5:.1f}" y="{middle - 4.5}" width="9" height="9" rx="1.5">{hint}</rect>'
        )
        body.append(f'<circle class="dot" cx="{p90:.1f}" cy="{middle}" r="4.5">{hint}</circle>')
        body.append(f'<circle class="dot p50" cx="{p50:.1f}" cy="{middle}" r="4.5">{hint}</circle>')
    return svg(bottom + 38, title, body)


def _day_ticks(first: date, last: date) -> list[date]:
    """Return about five days, evenly spaced, including the first and the last."""
    span = (last - first).days
    steps = min(5, span)
    return (
        [first + timedelta(days=round(span * step / steps)) for step in range(steps + 1)]
        if steps
        else [first]
    )


def _day_label(day: date, span: int) -> str:
    return f"{day.day} {day:%b}" if span < 300 else f"{day:%b %Y}"


def _time_ticks(smallest: float, largest: float) -> list[float]:
    """Return the ticks that enclose all values, at least two."""
    start = max((place for place, time in enumerate(_TIMES) if time <= smallest), default=0)
    end = min((place for place, time in enumerate(_TIMES) if time >= largest), default=len(_TIMES) - 1)
    return list(_TIMES[min(start, len(_TIMES) - 2) : max(end, start + 1) + 1])


def _readable(ticks: Sequence[float], x_of: Callable[[float], float]) -> list[float]:
    """Return the ticks whose labels do not overlap."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or x_of(tick) - x_of(kept[-1]) >= 44:
            kept.append(tick)
    return kept


def _row_height(row: Range) -> int:
    return 24 if row.values is None else 22


def _steps(row: Line, last: date, x_of: Callable[[date], float], y_of: Callable[[float], float]) -> str:
    day, value = row.points[0]
    path = [f"M{x_of(day):.1f} {y_of(value):.1f}"]
    for day, value in row.points[1:]:
        path.append(f"H{x_of(day):.1f}V{y_of(value):.1f}")
    return "".join([*path, f"H{x_of(last):.1f}"])
