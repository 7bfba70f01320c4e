from __future__ import annotations

import pytest

from conquiet.cli.durations import seconds_of, short_duration
from conquiet.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1_800),
        ("12h", 43_200),
        ("7d", 604_800),
        ("2W", 1_209_600),
        (" 1.5 h ", 5_400),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert seconds_of("--age", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0d", "-1d", "7 days", "d", "1e9d", "999999999999d", "٧d", "nan"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="--age must be a duration above 0, such as 90s, 30m, 12h or 7d"):
        seconds_of("--age", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7_199, "120m"), (7_200, "2h"), (172_800, "2d")],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text
