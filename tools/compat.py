"""Runs the tests of the queue with other versions of redis-py than the locked one: `make compat`.

`make compat VERSIONS="5.0.1 7.4.1"` chooses them. Each is installed into a folder of its own below build/, which the tests find
before the one of .venv; nothing in .venv changes. By default: the oldest version that is supported, and the newest of each
major version that was tested.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = str(ROOT / ".venv" / "bin" / "python")
UV = str(ROOT / ".venv" / "bin" / "uv")
VERSIONS = ("5.0.1", "5.3.1", "6.4.0", "7.4.1", "8.1.0")
TESTS = (
    "tests/unit/queue",
    "tests/integration/queue",
    "tests/integration/connectors/test_streams.py",
    "tests/integration/connectors/test_failover.py",
)
# Only later versions need a file descriptor to create a client.
LEFT_OUT = ("tests/integration/queue/test_connect.py::test_without_a_file_descriptor_it_says_so",)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--workers", default="0", help="processes that run tests")
    arguments = parser.parse_args()
    failed = []
    for version in arguments.versions:
        print(f"redis-py {version}", flush=True)
        if not _passes(version, arguments.workers):
            failed.append(version)
    if failed:
        print(f"conquiet: the tests fail with redis-py {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _passes(version: str, workers: str) -> bool:
    folder = ROOT / "build" / "compat" / f"redis-{version}"
    subprocess.run(
        [
            UV,
            "pip",
            "install",
            "-q",
            "--python",
            PYTHON,
            "--no-deps",
            "--target",
            folder,
            f"redis=={version}",
        ],
        check=True,
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    found = subprocess.run(
        [PYTHON, "-c", "import redis; print(redis.__version__)"],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    if found != version:
        print(f"conquiet: the tests would run with redis-py {found} instead", file=sys.stderr)
        return False
    left_out = [f"--deselect={test}" for test in LEFT_OUT] if int(version.partition(".")[0]) < 8 else []
    command = [PYTHON, "-m", "pytest", "-q", "--durations=0", "--durations-min=60"]
    command += ["--numprocesses", workers, "--dist", "loadscope", *left_out, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
