"""bench/README.md lists exactly the keys that the benchmarks emit, and they emit them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import load, rooms
from bench.harness import Bench

ROOT = Path(__file__).parents[2]
LISTED = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "bench" / "README.md").read_text(), re.MULTILINE)


def test_every_key_is_listed_once_and_emitted_by_a_benchmark() -> None:
    declared = [key for room in rooms() for key in load(room).keys()]  # noqa: SIM118  (not a dict)
    assert sorted(declared) == sorted(LISTED)


def test_a_benchmark_prints_one_flat_object_with_the_keys_it_declares() -> None:
    command = [sys.executable, "-m", "bench", "flow", "--json", "--repetitions", "1", "--scale", "0.002"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    values = json.loads(result.stdout)
    assert list(values) == load("flow").keys()
    assert all(isinstance(value, float) and value > 0 for value in values.values())
    assert "flow.thread_call: calls per second, median of 1" in result.stderr


def test_a_room_without_a_benchmark_is_refused_by_name() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "bench", "nonsense"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "no benchmark for nonsense; there are: " in result.stderr


def test_variants_take_turns_and_ratios_are_taken_pair_by_pair() -> None:
    order: list[str] = []
    ours, raw = iter([9.0, 1.0, 2.0, 4.0]), iter([9.0, 2.0, 2.0, 2.0])
    bench = Bench("made_up")
    bench.compare(
        "work",
        unit="units",
        count=10,
        ours=lambda count: (order.append("ours"), next(ours))[1],
        raw=lambda count: (order.append("raw"), next(raw))[1],
    )
    results = bench.run(Console(quiet=True), repetitions=3)
    assert order == ["ours", "raw", "raw", "ours", "ours", "raw", "raw", "ours"]
    assert results == {
        # 10, 5 and 2.5 units a second; the first round is not counted
        "made_up.work_per_second": pytest.approx(5.0),
        "made_up.work_vs_raw": pytest.approx(1.0),  # 2, 1 and 0.5
    }


def test_a_figure_is_the_median_of_its_measurements() -> None:
    values = iter([3.0, 1.0, 2.0])
    bench = Bench("made_up")
    bench.figure("idle", unit="of a core", measure=lambda: next(values))
    assert bench.run(Console(quiet=True), repetitions=3) == {"made_up.idle": 2.0}
    assert bench.keys() == ["made_up.idle"]


def test_what_a_benchmark_needs_is_made_once_and_closed() -> None:
    events: list[str] = []

    class Server:
        def __enter__(self) -> Server:
            events.append("open")
            return self

        def __exit__(self, *error: object) -> None:
            events.append("close")

    bench = Bench("made_up")
    server = bench.needs(Server)

    def work(count: int) -> float:
        server()
        events.append("work")
        return 1.0

    bench.compare("work", unit="units", count=1, raw=work)
    assert events == []
    bench.run(Console(quiet=True), repetitions=1)
    assert events == ["open", "work", "work", "close"]
