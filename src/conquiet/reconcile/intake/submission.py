"""A submitted report, checked field by field; a refusal names the field and the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from unicodedata import normalize

from conquiet.errors import ReportRefusedError
from conquiet.reconcile.rules import MAX_CLAIM

__all__ = ["MAX_NAME", "Submission", "checked_name"]

MAX_NAME: Final = 255
_NAMES = ("affiliate_id", "platform", "post_id")
_CLAIMS = ("claimed_views", "claimed_clicks", "claimed_conversions")
_FIELDS = frozenset((*_NAMES, *_CLAIMS, "submitted_at"))


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid report."""

    affiliate_id: str
    platform: str
    post_id: str
    claimed_views: int
    claimed_clicks: int
    claimed_conversions: int
    submitted_at: datetime

    @classmethod
    def from_payload(
        cls, payload: Mapping[str, Any], now: datetime, platforms: Collection[str] | None = None
    ) -> Submission:
        """Return the report in `payload`, received at `now`, or raise `ReportRefusedError` with the field and reason.

        The default of `submitted_at` is `now`.
        """
        for name in payload:
            if name not in _FIELDS:
                raise ReportRefusedError(
                    f"{_named(name)} is not a field of a report; its fields are: {', '.join(sorted(_FIELDS))}"
                )
        affiliate_id, platform, post_id = (checked_name(name, payload.get(name)) for name in _NAMES)
        if platforms is not None and platform not in platforms:
            raise ReportRefusedError(
                f"platform is not known; known platforms are: {', '.join(sorted(platforms))}",
                "platform",
            )
        views, clicks, conversions = (_checked_claim(name, payload.get(name)) for name in _CLAIMS)
        submitted_at = _checked_time(payload.get("submitted_at"), now)
        return cls(affiliate_id, platform, post_id, views, clicks, conversions, submitted_at)


def checked_name(field: str, value: object) -> str:
    """Return the name, without white space around it, if it is text that both databases can store.

    An affiliate's name is composed (NFC), too: what looks the same must not be two affiliates, with two rate limits.
    """
    if value is None:
        raise ReportRefusedError(f"{field} is missing", field)
    if not isinstance(value, str) or not value.strip():
        raise ReportRefusedError(f"{field} must be a text that is not empty, not {_shown(value)}", field)
    value = normalize("NFC", value.strip()) if field == "affiliate_id" else value.strip()
    if len(value) > MAX_NAME:
        raise ReportRefusedError(f"{field} has {len(value)} characters, more than {MAX_NAME}", field)
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ReportRefusedError(f"{field} holds NUL or a lone surrogate", field)
    return value


def _checked_claim(field: str, value: object) -> int:
    if value is None:
        raise ReportRefusedError(f"{field} is missing", field)
    if type(value) is not int or not 0 <= value <= MAX_CLAIM:
        raise ReportRefusedError(
            f"{field} must be a whole number from 0 to {MAX_CLAIM}, not {_shown(value)}", field
        )
    return value


def _checked_time(value: object, now: datetime) -> datetime:
    if value is None:
        return now
    field = "submitted_at"
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
        if moment.tzinfo is None:
            raise ReportRefusedError(f"{field} needs a zone, as in 2026-01-31T12:00:00Z", field)
        moment = moment.astimezone(UTC)
    except ReportRefusedError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise ReportRefusedError(
            f"{field} must be a time as in 2026-01-31T12:00:00Z, not {_shown(value)}", field
        ) from None
    if moment > now:
        raise ReportRefusedError(
            f"{field} is {moment.isoformat()}, in the future: it is {now.isoformat()} now", field
        )
    return moment


def _shown(value: object) -> str:
    """Describe the value. Text is not shown: it may be a secret, and responses are logged."""
    match value:
        case str():
            return f"a text of {len(value)} characters"
        case dict():
            return "an object"
        case list():
            return "an array"
        case _:
            return _cut(str(value))


def _named(key: str) -> str:
    return _cut(ascii(key))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
