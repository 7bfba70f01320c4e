"""Runs all benchmarks, or those of some rooms: `python -m bench [rooms] [--json] [--write]`.

The tables go to standard error and, with --json, one flat object to standard output. With --write the figures go to
docs/figures.toml, and from there into the pages.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console

from bench import figures, pages
from bench.harness import Bench

PARTS = {
    "__init__",
    "__main__",
    "figures",
    "fleet_app",
    "harness",
    "pages",
    "peers",
    "raw",
    "reconcile_data",
    "reconcile_duckdb",
    "spark_sinks",
}  # every other file here is a benchmark

QUOTED_ROUNDS = 3  # a median of fewer says little


def rooms() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in PARTS)


def load(room: str) -> Bench:
    bench = importlib.import_module(f"bench.{room}").BENCH
    assert isinstance(bench, Bench)
    return bench


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument(
        "rooms", nargs="*", metavar="room", help=f"one of {', '.join(rooms())}; all if none is named"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one flat object; bench/README.md lists its keys"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the figures into docs/figures.toml and the pages; full runs only",
    )
    parser.add_argument(
        "--repetitions", type=int, default=7, help="measured rounds, after one warm-up round (7)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount of work (1.0)")
    options = parser.parse_args(argv)
    if unknown := set(options.rooms) - set(rooms()):
        parser.error(f"no benchmark for {', '.join(sorted(unknown))}; there are: {', '.join(rooms())}")
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if options.write and (options.scale < 1 or options.repetitions < QUOTED_ROUNDS):
        parser.error(f"--write needs a full run: --scale 1 and at least {QUOTED_ROUNDS} --repetitions")
    console = Console(stderr=True)
    results: dict[str, float] = {}
    for room in options.rooms or rooms():
        measured = load(room).run(console, options.repetitions, options.scale)
        if options.write:  # room by room: a run of an hour that fails at its end keeps what it has
            figures.record(measured, options.repetitions)
        results |= measured
    if options.write:
        pages.differing(write=True)
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
