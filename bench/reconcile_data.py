"""Writes any number of reports and platform metrics as Parquet, the same for every measured engine.

Nine in ten posts have been observed, and one in nine of those twice. One in a hundred reports is submitted twice, and
one in a thousand is invalid; claims are on both sides of every threshold.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["AS_OF", "EVEN", "HOT_POST", "SKEWED", "write_metrics", "write_reports"]

AS_OF = datetime(2026, 1, 31, 12, tzinfo=UTC)
EVEN, SKEWED, HOT_POST = "even", "skewed", "hot_post"

_TIME = pa.timestamp("us", "UTC")
_HOUR = 3_600_000_000
_DAY_BEFORE = (AS_OF - timedelta(days=1) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
_PLATFORMS = pa.array(["photos", "clips", "shorts", "streams", "notes"])
_FILE_ROWS, _GROUP_ROWS = 1_000_000, 125_000

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def write_reports(folder: Path, count: int, kind: str) -> None:
    """`kind` is EVEN; SKEWED: a third of all reports from one affiliate; HOT_POST: these are also on one post."""
    for begin, rows in _parts(folder, count):
        random = np.random.default_rng(begin)
        report = rows.copy()
        report[random.random(len(rows)) < 0.01] -= 1  # repeats the report before it
        post = _mixed(report, count)
        affiliate = _mixed(report + 17, count) % max(1, count // 100)
        theirs = _mixed(report + 5, 3) == 0 if kind != EVEN else np.zeros(len(rows), bool)
        affiliate[theirs] = 0
        if kind == HOT_POST:
            post[theirs] = 0
        true = _true_numbers(post)
        views = true * (70 + _mixed(report + 3, 60)) // 100
        views[random.random(len(rows)) < 0.001] = -1
        columns = {
            "report_id": report,
            "affiliate_id": _named("affiliate-", affiliate),
            "platform": _PLATFORMS.take(pa.array(post % len(_PLATFORMS))),
            "post_id": _named("post-", post),
            "claimed_views": views,
            "claimed_clicks": true // 20,
            "claimed_conversions": true // 400,
            "submitted_at": pa.array(_DAY_BEFORE + _mixed(report, 20 * _HOUR)).cast(_TIME),
            "attempt": pa.array(1 + _mixed(report + 11, 2)).cast(pa.int32()),
        }
        pq.write_table(pa.table(columns), folder / f"{begin}.parquet", row_group_size=_GROUP_ROWS)


def write_metrics(folder: Path, count: int) -> None:
    observed = count * 9 // 10
    for begin, rows in _parts(folder, count):
        random = np.random.default_rng(begin + 1)
        # In another order than the reports, so that no engine finds both sides of a post in the same place.
        post = (rows * 7_368_787 + 11) % observed
        true = _true_numbers(post)
        clicks = pa.array(true // 20, mask=random.random(len(rows)) < 0.01)
        moment = _DAY_BEFORE + _mixed(post, 22 * _HOUR) + np.where(rows < observed, 0, _HOUR)
        columns = {
            "platform": _PLATFORMS.take(pa.array(post % len(_PLATFORMS))),
            "post_id": _named("post-", post),
            "views": true,
            "clicks": clicks,
            "conversions": true // 400,
            "observed_at": pa.array(moment).cast(_TIME),
        }
        pq.write_table(pa.table(columns), folder / f"{begin}.parquet", row_group_size=_GROUP_ROWS)


def _parts(folder: Path, count: int) -> list[tuple[int, Numbers]]:
    folder.mkdir()
    begins = range(0, count, _FILE_ROWS)
    return [(begin, np.arange(begin, min(count, begin + _FILE_ROWS), dtype=np.int64)) for begin in begins]


def _mixed(numbers: Numbers, below: int) -> Numbers:
    """Map each number to a pseudorandom one, always the same."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(below)).astype(np.int64)


def _true_numbers(post: Numbers) -> Numbers:
    return 100 + _mixed(post + 1, 1_000_000)


def _named(prefix: str, numbers: Numbers) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")
