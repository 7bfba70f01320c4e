"""Options are checked before anything is read; the error says what to write instead."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from conquiet.errors import QueueConfigError
from conquiet.spark.source.batch import ConquietBatchReader, _cut
from conquiet.spark.source.blocks import Block, Offset, spread, take
from conquiet.spark.source.options import SOURCE_SCHEMA, SourceOptions, checked_schema

GOOD = {"url": "redis://h/0", "stream": "s", "group": "g", "consumer": "c"}


def parse(**changes: str) -> SourceOptions:
    return SourceOptions.parse(CaseInsensitiveDict(GOOD | changes))


def test_names_of_options_are_case_insensitive_as_everywhere_in_spark() -> None:
    assert parse(MAXENTRIESPERTRIGGER="7", failondataloss="FALSE").max_entries_per_trigger == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": ""}, "needs the option url"),
        ({"consumer": ""}, "no other running query of the group has"),
        (
            {"maxEntriesPerTrigger": "0"},
            "maxEntriesPerTrigger must be a whole number of at least 1, .* not '0'",
        ),
        ({"partitions": "9" * 5_000}, "partitions must be a whole number .* at most 18 digits, not '9{30}'$"),
        ({"partitions": "two"}, "partitions must be a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
        ({"heartbeat": "soon"}, "heartbeat must be a number of seconds"),
        ({"heartbeat": "0"}, "heartbeat must be a number of seconds"),
        ({"maxEntries": "5"}, "has no option maxentries for this kind of read; there are: url, stream"),
    ],
)
def test_a_refused_option_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(QueueConfigError, match=message):
        parse(**changes)


def test_a_full_batch_has_a_block_for_every_partition() -> None:
    assert parse(maxEntriesPerTrigger="1000", partitions="4").block_entries == 250
    assert parse(maxEntriesPerTrigger="3", partitions="8").block_entries == 1
    assert parse(maxEntriesPerTrigger="1000000", partitions="4").block_entries == 5_000


def test_the_columns_are_not_to_be_chosen() -> None:
    assert checked_schema(SOURCE_SCHEMA) == SOURCE_SCHEMA
    with pytest.raises(QueueConfigError, match="leave .schema"):
        checked_schema(StructType().add("report_id", "string"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"startingId": "soon"}, "startingId must be an entry id"),
        ({"endingTime": "2026-11-16T12:00:00"}, "endingTime must be a time with its offset"),
        ({"startingId": "1-1", "startingTime": "2026-11-16T12:00:00Z"}, "exclude each other"),
        ({"group": "g"}, "has no option group for this kind of read"),
    ],
)
def test_a_refused_option_of_the_batch_read_is_named(changes: dict[str, str], message: str) -> None:
    options = CaseInsensitiveDict({"url": "redis://h/0", "stream": "s"} | changes)
    with pytest.raises(QueueConfigError, match=message):
        ConquietBatchReader(options, SOURCE_SCHEMA)


def test_a_range_is_cut_without_gap_or_overlap() -> None:
    assert [(r.lo, r.hi) for r in _cut("10-5", "19-7", 3)] == [("10-5", "12"), ("13", "15"), ("16", "19-7")]
    assert [(r.lo, r.hi) for r in _cut("10-5", "10-9", 3)] == [("10-5", "10-9")]


def test_offsets_are_small_and_come_back_as_they_were() -> None:
    blocks = tuple(Block(f"1794794779838-{n}", f"1794794779850-{n}", 5_000) for n in range(40))
    offset = Offset(blocks, 3)
    assert Offset.from_dict(offset.to_dict()) == offset
    assert len(str(offset.to_dict())) < 50 * len(blocks)
    with pytest.raises(QueueConfigError, match="written by another source"):
        Offset.from_dict({"blocks": ["1-1"], "lost": 0})


def test_blocks_are_taken_from_the_front_and_spread_evenly() -> None:
    blocks = [Block(f"{n}-0", f"{n}-9", count) for n, count in enumerate([10, 10, 10, 30, 5])]
    assert take(blocks, 30) == blocks[:3]
    assert take(blocks, 5) == blocks[:1]  # at least one
    assert take([], 5) == []
    assert spread(blocks, 2) == [blocks[:3], blocks[3:]]
    assert [run for runs in (spread(blocks, 9),) for run in runs] == [[block] for block in blocks]
    assert spread([], 3) == []
