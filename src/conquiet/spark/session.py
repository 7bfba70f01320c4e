"""Creates the SparkSession."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from conquiet.embedded import find_java, prepare_spark_environment

__all__ = ["command_session", "spark_session"]

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(
    app_name: str = "conquiet", master: str | None = None, conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Return a session on `master`; the default is the master of `spark-submit`, or all cores of this machine.

    `conf` is passed to Spark and overrides the defaults set here. If a session is active, Spark returns that one and
    applies the settings that can still change.
    """
    given = {key: _text(value) for key, value in (conf or {}).items()}
    master = master or given.pop("spark.master", None) or _default_master()
    local = master is not None and master.startswith("local")
    if local:
        prepare_spark_environment()
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Only the driver's JVM is started here. The cluster chooses the Python of its machines.
        os.environ["JAVA_HOME"] = str(find_java().home)
    settings = _defaults() | (_local_defaults(master) if local and master is not None else {})
    if _JAVA_OPTIONS in given:  # appended to the defaults: Java uses the last of two conflicting options
        given[_JAVA_OPTIONS] = f"{settings[_JAVA_OPTIONS]} {given[_JAVA_OPTIONS]}"
    settings |= given
    builder = SparkSession.Builder().appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _interrupts_deferred() as interrupts:
        session = builder.getOrCreate()
    if interrupts:
        session.stop()
        raise KeyboardInterrupt
    return session


@contextmanager
def command_session(
    app_name: str, master: str | None = None, conf: Mapping[str, object] | None = None
) -> Iterator[SparkSession]:
    """A session for a command in a terminal: stopped at the end of the block, and Ctrl-C only raises KeyboardInterrupt.

    PySpark's own handler of Ctrl-C calls the JVM over a connection on which a call may be under way. That fails with
    two tracebacks.
    """
    session = spark_session(app_name, master, conf)
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    before = signal.signal(signal.SIGINT, _interrupt)
    stop = session.stop
    try:
        yield session
    except KeyboardInterrupt:
        stop = partial(_stop_quietly, session)
        raise
    finally:
        stop()
        signal.signal(signal.SIGINT, before)
        root.removeFilter(_is_no_interrupt)


def _interrupt(number: int, frame: object) -> None:
    # Whatever a running query calls in this process fails from here on, on other threads, each time with a traceback.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    raise KeyboardInterrupt


def _stop_quietly(session: SparkSession) -> None:
    """Stop everything after Ctrl-C. What fails from here on is of no interest: the JVM ends with this process.

    Whatever runs in the JVM prints a stack trace when its session is stopped under it, or when this process no longer
    answers, and a call that was interrupted may leave connections that do not work.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    jvm: Any = session.sparkContext._jvm
    with suppress(Py4JError, PySparkException):
        session.sparkContext.setLogLevel("OFF")
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
        session.conf.set("spark.sql.streaming.stopTimeout", "5s")
        for query in session.streams.active:
            with suppress(PySparkException):  # too slow to stop: it ends with the session
                query.stop()
    with suppress(Py4JError, PySparkException):
        session.stop()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs a traceback for a KeyboardInterrupt during a call, and then raises it anyway."""
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


@contextmanager
def _interrupts_deferred() -> Iterator[list[int]]:
    """Collect Ctrl-C inside the block. A driver that ends while its JVM starts leaves that JVM behind, deadlocked."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: object) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # PySpark installs its own with the first session
            signal.signal(signal.SIGINT, before)


def _default_master() -> str | None:
    """Return None under `spark-submit`, because a master set here would override its `--master`."""
    told = "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return None if told else "local[*]"


def _defaults() -> dict[str, str]:
    return {
        # Timestamps are shown and parsed identically on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        # Spark's progress bar, on a terminal only; streaming has `show_progress`.
        "spark.ui.showConsoleProgress": _text(sys.stderr.isatty()),
    }


def _local_defaults(master: str) -> dict[str, str]:
    """Return settings for one machine: Spark's defaults suit a cluster (200 shuffle partitions, a web UI, …)."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{_driver_memory_mb()}m",
        "spark.sql.shuffle.partitions": str(_cores(master)),
        # Batch queries start with more partitions and coalesce small ones, so that hash tables of a large input stay
        # small. Streaming, where each partition keeps its own state, uses the number above.
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(16 * _cores(master)),
        "spark.ui.enabled": "false",
    }


def _driver_memory_mb() -> int:
    """Return a third of this machine's memory, between 1 and 8 GiB: the driver is also the executor."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(1024, min(8192, total // 3))


def _cores(master: str) -> int:
    inside = master.partition("[")[2].rstrip("]").split(",")
    if master.startswith("local-cluster"):
        return int(inside[0]) * int(inside[1])
    if master == "local":
        return 1
    return os.cpu_count() or 1 if inside[0] == "*" else int(inside[0])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
