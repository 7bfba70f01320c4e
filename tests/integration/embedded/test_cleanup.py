"""However the process that owns servers ends, nothing is left of them: no process, no folder, no memory."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import conquiet
from conquiet.embedded import RedisServer, available_postgres_binaries, available_redis_binaries, guardian

SOURCE = str(Path(conquiet.__file__).parents[1])
PROGRAMS = [
    str(binary.program.resolve()) for binary in (*available_redis_binaries(), *available_postgres_binaries())
]

OWNER = """
import json, os, signal, sys, time
from pathlib import Path
from conquiet.embedded import PostgresServer, RedisServer, guardian

base, what = sys.argv[1:]
redis = RedisServer(base_folder=base)
postgres = PostgresServer(base_folder=base)
if what != "starting":
    redis.start(), postgres.start()
    if what == "paused":
        redis.pause(), postgres.pause()
    if what == "forked" and os.fork() == 0:
        signal.pause()  # holds a copy of every pipe
    lock = Path(postgres.folder, "data", "postmaster.pid").read_text().split("\\n")
    told = {"pids": [redis.pid, postgres.pid], "segment": lock[6].split()[1], "uid": os.geteuid()}
    print(json.dumps(told), flush=True)
    if what == "exit":
        sys.exit(0)  # with both still running
    if what == "fork-exit":
        child = os.fork()
        if child == 0:
            sys.exit(0)  # the copy's exit handlers must leave the servers alone
        os.waitpid(child, 0)
        assert redis.running and postgres.running
    signal.pause()
print("starting", flush=True)
postgres.start()
redis.start()
signal.pause()
"""


@contextlib.contextmanager
def owner(
    base: Path, what: str, interpreter: tuple[str, ...] = (sys.executable,), **options: object
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that owns both servers, in its own process group, as under `make`."""
    process = subprocess.Popen(
        [*interpreter, "-W", "error::ResourceWarning", "-c", OWNER, str(base), what],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def here(base: Path) -> dict[int, str]:
    """Every server process that works below a folder."""
    found: dict[int, str] = {}
    for program in PROGRAMS:
        found |= guardian.processes(0, str(base), program)
    return found


def guardians(base: Path) -> list[str]:
    lines = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in lines.splitlines() if "guardian.py" in line and str(base) in line]


def wait_until(what: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def assert_nothing_is_left(base: Path) -> None:
    wait_until(lambda: not list(base.iterdir()))  # removed last
    assert not here(base)
    wait_until(lambda: not guardians(base))


def segments() -> set[str]:
    return {row.split()[1] for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.mark.parametrize(
    ("what", "end"),
    [
        ("running", signal.SIGKILL),
        ("running", signal.SIGTERM),
        ("running", signal.SIGINT),
        ("paused", signal.SIGKILL),
        ("forked", signal.SIGKILL),
        ("fork-exit", signal.SIGTERM),
        ("exit", None),
    ],
)
def test_nothing_outlives_the_owner(what: str, end: signal.Signals | None, tmp_path: Path) -> None:
    with owner(tmp_path, what) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        if end is not None:
            assert len(here(tmp_path)) > 3
            assert len(list(tmp_path.iterdir())) == 2
            assert told["segment"] in segments()
            os.kill(process.pid, end)
        assert_nothing_is_left(tmp_path)
        assert told["segment"] not in segments()


def test_killing_the_whole_group_does_not_reach_the_guardians(tmp_path: Path) -> None:
    with owner(tmp_path, "running") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        assert_nothing_is_left(tmp_path)


def test_there_is_no_moment_in_which_a_kill_leaves_something(tmp_path: Path) -> None:
    """Killed at many moments of the start, including initdb and its named shared memory (about 0.7 s)."""
    named_memory = set(glob.glob("/dev/shm/PostgreSQL.*"))
    for moment in range(10):
        base = tmp_path / str(moment)
        base.mkdir()
        with owner(base, "starting") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "starting\n"
            time.sleep(moment * 0.08)
            os.kill(process.pid, signal.SIGKILL)
            assert_nothing_is_left(base)
    wait_until(lambda: set(glob.glob("/dev/shm/PostgreSQL.*")) <= named_memory)


def test_a_server_whose_guardian_was_killed_is_not_started_again(tmp_path: Path) -> None:
    with RedisServer(base_folder=tmp_path) as private:
        watcher = private._process._guardian
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            watcher.send_signal(ignored)
        private.restart()
        watcher.kill()
        watcher.wait()
        assert private.running
        with pytest.raises(
            conquiet.errors.ServerError, match=r"the guardian of this server was killed.*close\(\)"
        ):
            private.restart()
    assert list(tmp_path.iterdir()) == []
    assert not here(tmp_path)


def test_processes_are_found_without_proc_too(tmp_path: Path) -> None:
    with owner(tmp_path, "paused") as process:  # so that PostgreSQL starts no other process in between
        assert process.stdout is not None
        redis, postgres = json.loads(process.stdout.readline())["pids"]
        by_ps = guardian._processes_by_ps(redis) | guardian._processes_by_ps(postgres)
        assert len(by_ps) > 3
        assert by_ps == here(tmp_path)


def other_account() -> tuple[int, tuple[str, ...], dict[str, str]]:
    """(uid, command, environment) of an interpreter that runs this project as a user other than root.

    The user is `nobody` if root has an interpreter that `nobody` can run, otherwise the current user.
    """
    nobody = 65534
    packages = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{packages}", "HOME": "/nonexistent"}
    works = (
        "import subprocess, sys, conquiet.embedded; subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if os.geteuid() == 0:
        for python in filter(None, (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin"))):
            command = ("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", python)
            if not subprocess.run([*command, "-c", works], env=environment, capture_output=True).returncode:
                return nobody, command, environment
    return os.geteuid(), (sys.executable,), dict(os.environ)


def test_it_is_the_same_for_another_user() -> None:
    uid, command, environment = other_account()
    base = Path(tempfile.mkdtemp())
    try:
        os.chown(base, uid, -1)
        with owner(base, "running", command, env=environment) as process:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["uid"] == uid
            assert len(here(base)) > 3
            os.kill(process.pid, signal.SIGKILL)
            assert_nothing_is_left(base)
            assert told["segment"] not in segments()
    finally:
        base.rmdir()
