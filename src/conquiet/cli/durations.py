"""Durations as people write them: 90s, 30m, 12h, 7d."""

from __future__ import annotations

import re

from conquiet.checks import MAX_SECONDS
from conquiet.errors import SettingsError

__all__ = ["seconds_of", "short_duration"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def seconds_of(flag: str, text: str) -> float:
    """A duration above 0. A number alone is a number of seconds."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhdw]?)", text.strip(), re.ASCII | re.IGNORECASE)
    seconds = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise SettingsError(f"{flag} must be a duration above 0, such as 90s, 30m, 12h or 7d, not {text!r}")
    return seconds


def short_duration(seconds: float) -> str:
    """A duration for people, in the largest unit that it has at least two of: 90s, 30m, 12h, 7d."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{max(seconds, 0.0):.0f}s"
