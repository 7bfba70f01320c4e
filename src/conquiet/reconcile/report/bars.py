"""The bar plots of a report as inline SVG (curves are in `curves.py`). This module does not know what is plotted.

All plots are 560 units wide, about their width on the page, so text keeps its size. Colours are classes of the style
sheet. Labels are plain text and are escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from conquiet.reconcile.report.text import cut, number, percent

__all__ = [
    "WIDTH",
    "Part",
    "Stack",
    "bars",
    "hint_of",
    "level_bars",
    "share_bar",
    "stacked_bars",
    "svg",
    "text_at",
]

WIDTH: Final = 560
_ISOLATED: Final = (
    "\u2068",
    "\u2069",
)  # SVG has no <bdi>; a right-to-left name must not reorder the text beside it


class Part(NamedTuple):
    """A piece of a stacked bar."""

    value: int
    css: str
    name: str


class Stack(NamedTuple):
    label: str
    parts: Sequence[Part]
    note: str


def stacked_bars(rows: Sequence[Stack], title: str) -> str:
    """Show the shares of a whole: one bar per row, all of the same length."""
    left, right, row_height, bar_height = 128, 474, 34, 22
    body = text_at(right + 8, 10, "reports", css="soft")
    for place, row in enumerate(rows):
        top = place * row_height + 18
        middle = top + bar_height / 2 + 4
        body += text_at(left - 8, middle, cut(row.label, 18), "end", hint=row.label)
        body += _stack(row.parts, left, right - left, top, bar_height)
        body += text_at(right + 8, middle, row.note, css="soft")
    bottom = len(rows) * row_height + 16
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + share * (right - left)
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        body += text_at(x, bottom + 10, f"{share * 100:.0f} %", anchor, "soft")
    body += text_at((left + right) / 2, bottom + 27, "share of reports", "middle", "soft")
    return svg(bottom + 32, title, body)


def share_bar(parts: Sequence[Part], title: str, height: int = 14) -> str:
    """Draw one stacked bar without text, as wide as its container."""
    body = _stack(parts, 0, WIDTH, 0, height, words=False)
    return svg(height, title, body, stretched=True)


def bars(rows: Sequence[tuple[str, int]], title: str, unit: str) -> str:
    """Show counts, each bar below its label, because labels may be sentences."""
    right = WIDTH - 104
    most = max((value for _, value in rows), default=0) or 1
    total = sum(value for _, value in rows) or 1
    body: list[str] = []
    for place, (label, value) in enumerate(rows):
        top = place * 39
        body += text_at(0, top + 13, cut(label, 84), hint=label)
        body.append(f'<rect class="track" x="0" y="{top + 19}" width="{right}" height="9" rx="4"/>')
        width = max(2.0, value / most * right) if value else 0.0
        hint = f"{label}: {number(value)} {unit}"
        body.append(
            f'<rect class="bar" x="0" y="{top + 19}" width="{width:.1f}" height="9" rx="4">{hint_of(hint)}</rect>'
        )
        body += text_at(WIDTH, top + 28, f"{number(value)} · {percent(value / total)}", "end", "soft")
    return svg(len(rows) * 39 - 6, title, body)


def level_bars(rows: Sequence[tuple[str, float]], title: str, label: str) -> str:
    """Show values from 0 to 1 on an axis with the given label."""
    left, right, row_height = 180, WIDTH - 50, 26
    bottom = len(rows) * row_height + 4
    body: list[str] = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + tick * (right - left)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        body += text_at(x, bottom + 14, f"{tick:.2f}", "middle", "soft")
    for place, (name, value) in enumerate(rows):
        top = place * row_height + 7
        width = max(0.0, min(1.0, value)) * (right - left)
        body += text_at(left - 10, top + 10, cut(name, 26), "end", hint=name)
        body.append(
            f'<rect class="bar" x="{left}" y="{top}" width="{width:.1f}" height="12" rx="3">'
            f"{hint_of(f'{name}: {value:.2f}')}</rect>"
        )
        body += text_at(right + 10, top + 10, f"{value:.2f}")
    body += text_at((left + right) / 2, bottom + 30, label, "middle", "soft")
    return svg(bottom + 35, title, body)


def svg(height: float, title: str, body: Sequence[str], *, stretched: bool = False) -> str:
    aspect = ' preserveAspectRatio="none"' if stretched else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}"{aspect}>'
        f"{''.join(body)}</svg>"
    )


def text_at(x: float, y: float, text: str, anchor: str = "start", css: str = "", hint: str = "") -> list[str]:
    style = f' class="{css}"' if css else ""
    more = hint_of(hint) if hint and hint != text else ""
    start, end = _ISOLATED
    return [
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{start}{escape(text)}{end}{more}</text>'
    ]


def hint_of(text: str) -> str:
    return f"<title>{escape(cut(text, 400))}</title>"


def _stack(
    parts: Sequence[Part], left: float, width: float, top: float, height: float, *, words: bool = True
) -> list[str]:
    total = sum(part.value for part in parts)
    body: list[str] = []
    if not total:
        return [f'<rect class="track" x="{left}" y="{top}" width="{width}" height="{height}"/>']
    x = left
    for part in parts:
        share = part.value / total
        if not part.value:
            continue
        hint = hint_of(f"{part.name}: {number(part.value)} ({percent(share)})")
        body.append(
            f'<rect class="{part.css}" x="{x:.2f}" y="{top}" width="{share * width:.2f}" height="{height}">{hint}</rect>'
        )
        if words and share * width >= 30:
            middle = x + share * width / 2
            body += text_at(middle, top + height / 2 + 4, f"{share * 100:.0f} %", "middle", f"in {part.css}")
        x += share * width
    return body
