"""An archive of the classes that Spark loads, so that the JVMs of the suite start with half of the CPU.

    python -m tests.class_archive     makes the archive once, by running the main job on a small sample

The suite starts some thirty JVMs, each for seconds, and most of what they do is loading and verifying the same classes.
Java maps them from an archive instead (class data sharing). An archive fits one Java and one set of jars: its name has both.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from conquiet.embedded import find_java
from conquiet.errors import ConquietError

FOLDER = Path(sys.prefix)  # with the jars: who removes the environment removes the archive
# A JVM that lives for seconds does not gain by optimizing. Without the optimizer Java reserves too little for compiled code.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
QUIET = "-Xlog:cds*=off"
SECONDS = 300.0


def java_options() -> str:
    """The options for JVMs of tests, with the archive if there is one."""
    archive = archive_path()
    return f"{QUICK} {QUIET} -XX:SharedArchiveFile={archive}" if archive and archive.exists() else QUICK


def archive_path() -> Path | None:
    """None without Java: the tests that need it say so themselves."""
    try:
        java = find_java()
    except ConquietError:
        return None
    fits = f"{java} {version('pyspark')} {FOLDER}"
    return FOLDER / f"spark-classes-{hashlib.sha256(fits.encode()).hexdigest()[:12]}.jsa"


def make(archive: Path) -> bool:
    """Java writes the archive when it exits, which is after the main job has ended."""
    draft = archive.with_suffix(f".{os.getpid()}")
    options = f"{QUICK} {QUIET} -XX:ArchiveClassesAtExit={draft}"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "conquiet.demo.main_job", "--reports", "200"],
            cwd=folder,
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    if done.returncode != 0:
        print(f"class archive: the main job failed, tests go on without one\n{done.stderr[-2_000:]}")
        return False
    deadline = time.monotonic() + SECONDS
    while not _is_written(draft):
        if time.monotonic() > deadline:
            print("class archive: Java wrote none, tests go on without one")
            return False
        time.sleep(0.2)
    draft.replace(archive)
    return True


def _is_written(draft: Path) -> bool:
    """Java makes the file read-only when it is complete."""
    return draft.exists() and not draft.stat().st_mode & 0o222


def main() -> None:
    archive = archive_path()
    if archive and not archive.exists():
        print("class archive: written once, takes a minute ...", flush=True)
        make(archive)


if __name__ == "__main__":
    main()
