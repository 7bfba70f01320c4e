"""Builds the wheel and the sdist into dist/ and checks the wheel as a user installs it: `make release`.

The wheel is installed into an empty virtual environment, once without an extra and once with each. In each of them every
front door of the package is tried: a door whose extras are installed must open, any other must name the missing extra
(`MissingDependencyError` with the command that installs it). The locks in requirements/ determine the versions.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHON = ROOT / ".venv" / "bin" / "python"
UV = ROOT / ".venv" / "bin" / "uv"
COLLECTIONS = {"all", "dev"}  # extras that consist of others


@dataclass(frozen=True)
class Door:
    """A way into the package, as code, and the extras that it needs."""

    code: str
    needs: str = ""
    quiet: bool = False  # works without its extra, with less: tried only with it

    def opens(self, extras: set[str]) -> bool:
        return set(self.needs.split()) <= extras


NOBODY = "127.0.0.1:1"  # nothing listens there; finding that out needs the client
DOORS = [
    Door("import conquiet; conquiet.Conquiet('memory://').close()"),
    Door("import conquiet.app, conquiet.errors, conquiet.local, conquiet.task, conquiet.testing"),
    Door("from conquiet.embedded import *"),
    Door("from conquiet.observe import *"),
    Door("from conquiet.jobs import *; open_store('memory://').close()"),
    Door("from conquiet.jobs import *; open_store('sqlite:///jobs.db').close()"),
    Door(f"from conquiet.jobs import *; open_store('postgresql://{NOBODY}/jobs')", "postgres"),
    Door("from conquiet.queue import *", "redis"),
    Door("from conquiet.connectors import IterableConnector, JobConnector, LocalQueueConnector"),
    Door("from conquiet.connectors import StreamConnector", "redis"),
    Door("from conquiet.reconcile import Rules, classify"),
    Door("from conquiet.reconcile import Reconciler, open_database", "reconcile"),
    Door("from conquiet.reconcile import ReconciliationService, create_app", "reconcile web"),
    Door("from conquiet.reconcile import *", "reconcile web"),
    Door("from conquiet.reconcile.report import write_report"),
    Door("from conquiet.reconcile.report import *", "spark"),
    Door("from conquiet.reconcile.spark import *", "spark"),
    Door("from conquiet.spark import *", "spark"),
    Door("from pyspark_conquiet import DefaultSource; DefaultSource({}).schema()", "spark", quiet=True),
    Door("from conquiet.demo import Sample"),
    Door(
        "from conquiet.verify import *; verify('sqlite:///verified.db', work=5, kills=1, signals=0, cancels=1)"
    ),
    Door(f"from conquiet.verify import *; verify('redis://{NOBODY}')", "redis"),
    Door(f"from conquiet.verify import *; verify('postgresql://{NOBODY}/jobs')", "postgres"),
    Door(
        "from conquiet.observe import exposition; assert exposition() is not None", "prometheus", quiet=True
    ),
    Door("import opentelemetry.trace; from conquiet.observe import Spans", "otel", quiet=True),
    Door("import uvicorn", "web", quiet=True),
    Door("from conquiet.embedded import *; RedisServer().start().stop()", "embedded", quiet=True),
    Door("from conquiet.embedded import *; find_java({'HOME': '.'})", "java", quiet=True),
]


def main() -> int:
    begin = time.monotonic()
    wheel = build()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="conquiet-release-") as folder:
        for extra in ["", *extras()]:
            failures += check(wheel, extra, Path(folder))
    verdict = f"{failures} failures" if failures else "every door opens, or names what it needs"
    print(f"release: {wheel.relative_to(ROOT)}: {verdict}; {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name not in COLLECTIONS]


def build() -> Path:
    """Build the sdist, and the wheel from the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    command: list[str | Path] = [
        UV,
        "build",
        "-q",
        "--no-build-isolation",
        "--python",
        PYTHON,
        "--out-dir",
        DIST,
        ROOT,
    ]
    subprocess.run(command, check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check(wheel: Path, extra: str, folder: Path) -> int:
    """The number of doors that fail with only that extra."""
    begin = time.monotonic()
    home = folder / (extra or "none")
    python = home / "bin" / "python"
    subprocess.run([UV, "venv", "-q", "--python", PYTHON.resolve(), home], check=True)
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    locks = [part for lock in ("core", "spark") for part in ("-c", f"requirements/{lock}.txt")]
    install: list[str | Path] = [UV, "pip", "install", "-q", "--python", python, *locks, wanted]
    subprocess.run(install, check=True, cwd=ROOT)
    # Isolated (-I): neither the checkout nor PYTHONPATH can supply what the wheel lacks.
    tried = subprocess.run([python, "-I", __file__, "--try-doors", extra], cwd=home)
    failures = tried.returncode + command_fails(home / "bin" / "conquiet", extra)
    shutil.rmtree(home)
    print(f"release: {extra or 'no extra'}: {failures or 'no'} failures; {time.monotonic() - begin:.0f} s")
    return failures


def command_fails(program: Path, extra: str) -> bool:
    """Whether the command fails to print its version, or the extra that it needs."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    version = re.fullmatch(r"\d+\.\d+\S*\n", done.stdout) is not None
    fails = not version if extra == "cli" else 'pip install "conquiet[cli]"' not in done.stderr
    if fails:
        print(f"release: conquiet --version: exit {done.returncode}: {done.stdout}{done.stderr}")
    return fails


def try_doors(extra: str) -> int:
    """Runs in the virtual environment of that extra: the number of doors that fail."""
    failures = 0
    for door in DOORS:
        if door.opens({extra}) or not door.quiet:
            failures += not as_it_should_be(door, extra)
    return failures


def as_it_should_be(door: Door, extra: str) -> bool:
    for name in [name for name in sys.modules if name.partition(".")[0] == "conquiet"]:
        del sys.modules[name]  # each door is tried in a fresh state
    try:
        exec(door.code, {})  # noqa: S102 - the code of DOORS, above
    except Exception as error:  # noqa: BLE001 - every exception is judged
        said = [base.__name__ for base in type(error).__mro__]
        if door.opens({extra}):
            good = (
                "StoreUnavailableError" in said or "QueueConnectionError" in said
            )  # raised by the client, about NOBODY
        else:
            missing = set(door.needs.split()) - {extra}
            good = "MissingDependencyError" in said and any(
                f'pip install "conquiet[{one}]"' in str(error) for one in missing
            )
        if not good:
            print(f"release: {door.code}: with {extra or 'no extra'}:")
            traceback.print_exc(limit=-3, file=sys.stdout)
        return good
    if not door.opens({extra}):
        print(f"release: {door.code}: works with {extra or 'no extra'}, and should need {door.needs}")
    return door.opens({extra})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--try-doors", metavar="EXTRA", help="in a virtual environment with that extra")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main() if options.try_doors is None else try_doors(options.try_doors))
