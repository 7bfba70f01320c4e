"""The peers. Each is a script that runs in .venv-bench and prints how long its drain took.

They are never imported here: neither they nor their dependencies are installed next to conquiet.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.harness import Variant

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parents[1] / ".venv-bench" / "bin" / "python"

PGQUEUER_BATCH = 200  # pgqueuer's fastest: 100 to 500 differ less than two runs of one of them do


def drain(peer: str, target: Callable[[], str], *settings: str, share: float = 1.0) -> Variant:
    """Return a variant that lets the peer enqueue and then drain `count` jobs that do nothing; only the drain counts.

    Without `settings` the peer runs with its own defaults; its script says which settings it takes. `target` returns a server or file for each run, so that each begins with an empty queue. A slow peer may get a
    `share` of the jobs; its time counts as if it had done them all at that rate.
    """

    def variant(count: int) -> float:
        if not PYTHON.exists():
            raise SystemExit(f"{peer} needs .venv-bench; run: make peers")
        jobs = max(1, round(count * share))
        result = subprocess.run(
            [PYTHON, FOLDER / f"{peer}.py", str(jobs), *settings],
            env={**os.environ, "BENCH_TARGET": target()},  # not an argument: it may contain a password
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return float(json.loads(result.stdout.splitlines()[-1])["seconds"]) * count / jobs

    return variant
