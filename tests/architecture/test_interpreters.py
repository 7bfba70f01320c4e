"""Python processes of the suite import compiled modules: tests/interpreters.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.interpreters import STARTUP, start_compiled


def test_a_process_of_the_suite_keeps_bytecode(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("")
    subprocess.run([sys.executable, "-c", "import imported"], cwd=tmp_path, check=True)
    assert len(list((tmp_path / "__pycache__").iterdir())) == 1


def test_a_process_of_spark_imports_no_zip_file() -> None:
    """Spark puts its own in front of everything else."""
    zips = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10-src.zip"]
    path = os.pathsep.join([*zips, "/opt/more.zip", os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert {*zips, "/opt/more.zip"} & set(done.stdout.splitlines()) == {"/opt/more.zip"}


def test_what_is_on_the_path_stays_there() -> None:
    environment = {"PYTHONPATH": "/somewhere", "PYTHONDONTWRITEBYTECODE": "1"}
    for _ in range(2):
        start_compiled(environment)
        assert environment == {"PYTHONPATH": f"{STARTUP}{os.pathsep}/somewhere"}
