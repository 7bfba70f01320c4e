"""Which figures a run keeps: from which test, of which size, and for how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.faults.figures import RESULTS, Figures, bound_of, table

CUTS, KILLS = "tests/test_cuts.py::test_cuts", "tests/test_kills.py::test_kills[redis]"


@pytest.fixture(autouse=True)
def a_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "FULL", False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two fault tests."""
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("cuts", "kills"):
        (folder / f"test_{name}.py").write_text(f"def test_{name}(record_figure):\n    ...\n")
    return tmp_path


def kept(root: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((root / RESULTS).read_text())
    return figures


def test_the_bound_is_three_by_n() -> None:
    assert bound_of(1_000) == "3/1,000 = 0.30%"
    assert bound_of(3) == "3/3: nothing can be excluded"
    assert bound_of(1_000, lost=1) == "none"


def test_a_run_tells_its_own_figures(root: Path) -> None:
    figures = Figures(root)
    figures.record(CUTS, "cuts", n=1_000, lost=0, cut_points=25)
    assert figures.lines == [
        "cuts: n 1,000, lost 0, double effects 0, 95 % bound 3/1,000 = 0.30%, cut points 25"
    ]


def test_a_twentieth_does_not_replace_a_full_campaign(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(campaign, "FULL", True)
        Figures(root).record(CUTS, "cuts", n=1_000)
    small = Figures(root)
    small.record(CUTS, "cuts", n=50)
    small.drop_stale()
    assert kept(root)["cuts"]["n"] == 1_000


def test_what_is_of_one_size_is_never_called_a_twentieth(root: Path) -> None:
    figures = Figures(root)
    figures.record(CUTS, "cuts", n=50)
    figures.record(KILLS, "kills", n=1, whole=True)
    rows = table(root / RESULTS).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| cuts (a twentieth)", "| kills"]
    figures.record(KILLS, "kills", n=2, whole=True)  # the newer one counts
    assert kept(root)["kills"]["n"] == 2


def test_what_nobody_says_any_more_is_dropped(root: Path) -> None:
    before = Figures(root)
    before.record(CUTS, "cuts, as they were called before", n=50)
    before.record(KILLS, "kills", n=50)
    before.record("tests/test_cuts.py::test_gone", "gone", n=1)
    before.record("tests/test_file_gone.py::test_gone", "gone with its file", n=1)
    before.drop_stale()
    assert sorted(kept(root)) == ["cuts, as they were called before", "kills"]
    after = Figures(root)
    after.record(CUTS, "cuts", n=50)
    after.drop_stale()
    assert sorted(kept(root)) == ["cuts", "kills"]
