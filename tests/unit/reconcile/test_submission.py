"""Submitted reports: every refusal names its field and its reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from conquiet.reconcile import ReportRefusedError
from conquiet.reconcile.intake.submission import Submission

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
GOOD = {
    "affiliate_id": "ann",
    "platform": "instagram",
    "post_id": "p1",
    "claimed_views": 1000,
    "claimed_clicks": 30,
    "claimed_conversions": 2,
    "submitted_at": "2026-01-31T11:59:00Z",
}


def submitted(**changes: Any) -> Submission:
    payload = {name: value for name, value in {**GOOD, **changes}.items() if value != "absent"}
    return Submission.from_payload(payload, NOW, {"instagram", "tiktok"})


def test_a_good_report_is_taken_as_it_is() -> None:
    report = submitted()
    assert report == Submission("ann", "instagram", "p1", 1000, 30, 2, NOW - timedelta(minutes=1))
    assert submitted(submitted_at="absent").submitted_at == NOW
    assert submitted(submitted_at="2026-01-31T14:00:00+02:00").submitted_at == NOW
    assert submitted(claimed_views=2**63 - 1, claimed_clicks=0).claimed_views == 2**63 - 1


@pytest.mark.clause("W-25")
def test_names_that_look_the_same_are_the_same() -> None:
    composed, apart = "Zo\u00eb", "Zoe\u0308"
    assert submitted(affiliate_id=f" {apart}\t\u00a0").affiliate_id == composed
    assert submitted(platform="tiktok ", post_id="\np1 ") == submitted(platform="tiktok")
    assert submitted(post_id=apart).post_id == apart  # a platform's own name for a post stays as it is
    assert submitted(affiliate_id=" " + "x" * 255 + " ").affiliate_id == "x" * 255
    with pytest.raises(ReportRefusedError, match="more than 255"):
        submitted(affiliate_id="\u0958" * 255)  # composed it is longer


@pytest.mark.clause("W-25")
@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("claimed_views", "absent", "claimed_views is missing"),
        ("claimed_views", None, "claimed_views is missing"),
        ("claimed_clicks", -1, "claimed_clicks must be a whole number from 0 to 9223372036854775807, not -1"),
        (
            "claimed_clicks",
            2**63,
            "must be a whole number from 0 to 9223372036854775807, not 9223372036854775808",
        ),
        ("claimed_clicks", 1.0, "must be a whole number"),
        ("claimed_clicks", True, "must be a whole number"),
        (
            "claimed_conversions",
            "7",
            "must be a whole number from 0 to 9223372036854775807, not a text of 1 char",
        ),
        ("affiliate_id", "absent", "affiliate_id is missing"),
        ("affiliate_id", "", "affiliate_id must be a text that is not empty"),
        ("affiliate_id", 7, "affiliate_id must be a text"),
        ("post_id", "x" * 256, "post_id has 256 characters, more than 255"),
        ("post_id", "a\0b", "post_id holds NUL"),
        ("post_id", "a\ud800b", "post_id holds NUL or a lone surrogate"),
        ("platform", "os.system", "platform is not known; known platforms are: instagram, tiktok"),
        (
            "submitted_at",
            "yesterday",
            "submitted_at must be a time as in 2026-01-31T12:00:00Z, not a text of 9 characters",
        ),
        ("submitted_at", 1_700_000_000, "submitted_at must be a time"),
        ("submitted_at", "2026-01-31T11:00:00", "submitted_at needs a zone"),
        ("submitted_at", "2026-01-31T12:00:00.000001Z", "in the future"),
        ("submitted_at", "0001-01-01T00:00:00+14:00", "submitted_at must be a time"),
    ],
)
def test_a_bad_field_is_named_with_the_reason(field: str, value: Any, reason: str) -> None:
    with pytest.raises(ReportRefusedError, match=reason) as refused:
        submitted(**{field: value})
    assert refused.value.field == field


def test_unknown_fields_are_named() -> None:
    with pytest.raises(
        ReportRefusedError, match="'claimed_likes' is not a field of a report; its fields are: affil"
    ):
        submitted(claimed_likes=3)


def test_a_time_in_another_zone_is_compared_as_the_moment_it_is() -> None:
    with pytest.raises(ReportRefusedError, match="in the future"):
        submitted(
            submitted_at=(NOW + timedelta(minutes=1)).astimezone(timezone(-timedelta(hours=5))).isoformat()
        )


def test_a_reason_never_repeats_an_endless_value() -> None:
    with pytest.raises(ReportRefusedError) as refused:
        submitted(claimed_views="9" * 10_000)
    assert len(str(refused.value)) < 200
