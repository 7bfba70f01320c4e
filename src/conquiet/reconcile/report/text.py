"""Formats names and numbers for a report. No name can become markup or affect the text around it."""

from __future__ import annotations

import math
import unicodedata
from datetime import date
from html import escape

__all__ = ["counted", "cut", "day", "duration", "named", "number", "percent", "plain"]

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = frozenset(("Cc", "Cs", "Co", "Cn", "Zl", "Zp"))
_MARKS_IN_A_ROW = 2  # enough for every written language; longer runs only serve to paint over other lines
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def plain(name: str) -> str:
    """Replace characters that move, hide or cover other text with �."""
    shown: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", name):
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MARKS_IN_A_ROW:
            continue
        shown.append("�" if char in _BIDI or category in _UNSEEN else char)
    return "".join(shown)


def cut(name: str, width: int) -> str:
    """Return `name`, plain, at most `width` columns wide; a wide character counts as two."""
    text, used = plain(name), 0
    for place, char in enumerate(text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 0 if unicodedata.combining(char) else 1
        if used > width - 1 and place < len(text) - 1:
            return text[:place].rstrip() + "…"
    return text


def named(name: str, width: int = 60) -> str:
    """Format a name as HTML. It is isolated, so right-to-left text reorders nothing else; a hint has the full name."""
    short = cut(name, width)
    hint = "" if short == name else f' title="{escape(cut(name, 400))}"'
    return f"<bdi{hint}>{escape(short)}</bdi>"


def number(value: int) -> str:
    """Format as 1,234,567 or, from ten million, as 12.3 million."""
    if value < 10_000_000:
        return f"{value:,}"
    for size, word in ((10**12, "trillion"), (10**9, "billion")):
        if value >= size:
            return f"{value / size:,.1f} {word}"
    return f"{value / 10**6:,.1f} million"


def counted(count: int, one: str, many: str = "") -> str:
    """Format as 1 report, 2 reports, 3 retries."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """Format as 12.3 %. Only 0 is shown as 0 %, and only 1 as 100 %."""
    if share <= 0 or share >= 1:
        return f"{share * 100:.0f} %"
    if share < 0.001:
        return "< 0.1 %"
    if share > 0.999:
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


def duration(seconds: float) -> str:
    """Format with at most three digits in a suitable unit: 340 µs, 1.25 s, 3.4 min."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 0:
        return f"−{duration(-seconds)}"
    for size, unit in _UNITS:
        if seconds >= size * 0.9995:  # 999.6 ms is shown as 1 s
            value = seconds / size
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            text = f"{value:,.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    return "0 s" if seconds < 5e-7 else "1 µs"


def day(one: date) -> str:
    return f"{one.day} {one:%b %Y}"
