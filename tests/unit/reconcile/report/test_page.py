"""The page contains exactly what it was given: escaped, in one file, every part drawn or reported as missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conquiet.jobs import QueueStats
from conquiet.reconcile import Status
from conquiet.reconcile.report.figures import (
    AlertCount,
    DayTrust,
    JobFigures,
    Outcomes,
    ReportFigures,
    TimesRow,
    TrustLine,
)
from conquiet.reconcile.report.page import report_html, write_report
from conquiet.reconcile.report.style import CSS
from conquiet.reconcile.report.text import cut, duration, number, percent, plain

pytestmark = pytest.mark.clause("P-13")

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</title></style></svg><h1>",
    "\u202egnp.exe\u202c",
    "شركة",
    "z" + "\u0336" * 200,
    "\0\x1b[31m\ud800\u2028",
    "写" * 300,
    "x" * 5_000,
    "&amp;&lt;",
    "",
)
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "h1",
    "h2",
    "p",
    "div",
    "main",
    "section",
    "footer",
}
TAGS |= {"bdi", "ul", "li", "i", "b", "table", "tr", "th", "td"}
TAGS |= {"svg", "g", "text", "rect", "line", "path", "circle"}
DAY = date(2026, 1, 31)
EMPTY = ReportFigures(Outcomes("all", 0), made_at=datetime(2026, 1, 31, 12, tzinfo=UTC))


def outcomes(name: str, factor: int = 1, score: float | None = 0.25) -> Outcomes:
    counts = {status: factor * (place + 1) for place, status in enumerate(Status)}
    return Outcomes(name, sum(counts.values()), counts, score)


def full(name: str = "ann", days: int = 30) -> ReportFigures:
    """Every part filled; `name` stands wherever a name can be."""
    return replace(
        EMPTY,
        total=outcomes("all", 1_000),
        title=name,
        affiliates_in_all=12_345,
        platforms_in_all=3,
        judged_again=77,
        pending=66,
        retries=88,
        lost=0,
        platforms=(outcomes(name, 500), outcomes("clips", 400)),
        other_platforms=outcomes("all others", 100),
        affiliates=(outcomes(name), outcomes("bob", score=None)),
        trust_days=tuple(DayTrust(DAY + timedelta(n), 10 + n, 4, 0.5 + n / 100) for n in range(days)),
        trust_lines=(
            TrustLine(name, 0.5, tuple((DAY + timedelta(n), 0.5 - n / 100) for n in range(0, days, 3))),
            TrustLine("quiet", 0.75, ()),
        ),
        alerts=(AlertCount(name, "critical", 9), AlertCount("data_quality", name, 5)),
        quarantine=1_234,
        quarantine_reasons=((name, 1_000), ("not a JSON object", 234)),
        jobs=JobFigures(
            times=(
                TimesRow(name, "first_wait", 4_321, 0.0012, 0.34, 5.6, 78.0),
                TimesRow(name, "processing", 4_321, 0.0, 0.0, 0.0, 0.0),
            ),
            outcomes={"succeeded": 4_000, name: 321},
            queues=(QueueStats(name, ready=3, failed=2, succeeded=4_000),),
        ),
    )


class Page(HTMLParser):
    """Checks that every tag is closed, and collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(figures: ReportFigures) -> Page:
    """The page of `figures`. It must be well formed and must load nothing."""
    html = report_html(figures)
    page = Page(html)
    assert page.open == []
    assert set(page.tags) <= TAGS
    assert not [
        name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "style")
    ]
    assert "://" not in html
    assert "url(" not in html
    assert "nan" not in [value for _, value in page.attributes]
    for drawing in re.findall(r"<svg .*?</svg>", html, re.DOTALL):
        for element in ElementTree.fromstring(drawing).iter():
            for name in ("x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy"):
                assert -1 <= float(element.get(name, "0")) <= 1_000, ElementTree.tostring(element)
    html.encode()  # no lone surrogates
    return page


def test_every_figure_is_on_the_page() -> None:
    text = checked(full()).text
    for shown in (
        "28,000",
        "12,345 affiliates",
        "Matched3.6 %",
        "Overclaimed17.9 %",
        "1,234",
        "66",
        "88 retries",
        "77 judged again",
    ):
        assert shown in text
    for shown in (
        "Lost0",
        "9 of them critical",
        "Jobs failed2",
        "1.2 ms",
        "340 ms",
        "5.6 s",
        "1.3 min",
        "4,321",
    ):
        assert shown in text
    for shown in (
        "Mean trust rose: 0.50 on 31 Jan 2026, 0.79 on 1 Mar 2026",
        "trust score",
        "day (UTC)",
        "share of reports",
    ):
        assert shown in text
    for name in (
        "Matched",
        "Overclaimed",
        "No platform data",
        "half (p50)",
        "99 % (p99)",
        "4 of 39 affiliates",
    ):
        assert name in text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_a_name(name: str) -> None:
    page = checked(full(name))
    assert not set("\u202e\u202c\0\x1b\u2028").intersection(page.text)
    assert "onerror" not in [attribute for attribute, _ in page.attributes]
    assert "x" * 500 not in page.text
    assert "\u0336" * 3 not in page.text


def test_names_are_isolated_from_what_stands_beside_them() -> None:
    html = report_html(full("شركة"))
    assert "<bdi>شركة</bdi>" in html
    isolated = r"<bdi>شركة</bdi>|\u2068[^\u2069]*شركة[^\u2069]*\u2069|<title>[^<]*شركة[^<]*</title>"
    assert html.count("شركة") == len(re.findall(isolated, html))


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (EMPTY, "No report was judged"),
        (EMPTY, "No job history was given"),
        (EMPTY, "was not counted"),
        (EMPTY, "No change of trust"),
        (EMPTY, "No alert was raised"),
        (EMPTY, "Nothing was put aside"),
        (replace(full(), jobs=JobFigures()), "No job has been attempted yet"),
        (replace(full(), affiliates=()), "No affiliate is contested"),
        (replace(full(), lost=3), "entries gone from the queue before they were read"),
        (full(days=1), "Mean trust is 0.50, after one day"),
    ],
)
def test_a_part_that_is_missing_is_said_to_be(figures: ReportFigures, said: str) -> None:
    assert said in checked(figures).text


def test_nothing_is_drawn_of_nothing() -> None:
    assert "svg" not in checked(EMPTY).tags
    assert "good" not in {value for name, value in checked(EMPTY).attributes if name == "class" and value}


def test_light_and_dark_have_the_same_colours_defined() -> None:
    css = CSS
    light, dark = (
        css.split("prefers-color-scheme: dark")[0],
        css.split("prefers-color-scheme: dark")[1].split("* {")[0],
    )
    defined = [set(re.findall(r"(--\w+):", part)) for part in (light, dark)]
    assert defined[0] == defined[1]
    assert set(re.findall(r"var\((--\w+)\)", css)) <= defined[0]


def test_readers_see_the_old_page_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    assert write_report(path, EMPTY) == path
    before = path.read_text()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="disk full"):
            write_report(path, full())
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["report.html"]
    with path.open() as reader:
        write_report(str(path), full())
        assert reader.read() == before  # an open reader goes on with the old file
    assert path.read_text() != before
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(0), "0"),
        (number(9_999_999), "9,999,999"),
        (number(12_340_000), "12.3 million"),
        (number(2**63 - 1), "9,223,372.0 trillion"),
        (percent(0.0), "0 %"),
        (percent(0.0004), "< 0.1 %"),
        (percent(0.12345), "12.3 %"),
        (percent(0.9996), "> 99.9 %"),
        (percent(1.0), "100 %"),
        (duration(0.0), "0 s"),
        (duration(0.000_000_7), "1 µs"),
        (duration(0.000_34), "340 µs"),
        (duration(0.9996), "1 s"),
        (duration(1.25), "1.25 s"),
        (duration(200.0), "3.33 min"),
        (duration(90_000.0), "1.04 d"),
        (duration(-2.0), "−2 s"),
        (duration(float("nan")), "–"),
        (cut("abc", 3), "abc"),
        (cut("abcd", 3), "ab…"),
        (cut("写真写真", 5), "写真…"),
        (plain("a\u202eb\n"), "a�b�"),
        (plain("e\u0301"), "é"),
    ],
)
def test_numbers_and_names_are_readable(shown: str, expected: str) -> None:
    assert shown == expected


def test_making_a_page_needs_no_spark() -> None:
    """Figures can come from anywhere: importing the page code does not import PySpark."""
    code = "import sys; from conquiet.reconcile.report import ReportFigures, write_report; print('pyspark' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
