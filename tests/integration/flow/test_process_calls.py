"""Calls in real child processes that answer, fail, are killed, or die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import CallTimeoutError, IsolationError, RemoteCallError
from conquiet.flow.process import ProcessCalls

SRC = Path(__file__).parents[3] / "src"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's module, importable here and therefore in the children."""
    (tmp_path / "their_work.py").write_text(
        textwrap.dedent("""
        import os, subprocess, sys, time
        def add(a, b): return {"sum": a + b, "pid": os.getpid()}
        def fail(dsn): raise LookupError(f"no row at {dsn}")
        def hang(pid_file):
            grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(pid_file + ".part", "w") as f: f.write(f"{os.getpid()} {grandchild.pid}")
            os.rename(pid_file + ".part", pid_file)
            time.sleep(600)
        def die(): os.kill(os.getpid(), 9)
        def leave(): sys.exit(3)
        def odd(): return {1, 2}
        class Things:
            @staticmethod
            def double(x): return 2 * x
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import their_work  # type: ignore[import-not-found]

    yield their_work
    del sys.modules["their_work"]


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        os.sched_yield()


def test_a_call_runs_in_another_process_which_is_used_again(work: Any) -> None:
    with ProcessCalls(work.add) as calls:
        first, second = calls.run(1, 2), calls.run(3, 4, timeout=30)
    assert (first["sum"], second["sum"]) == (3, 7)
    assert first["pid"] == second["pid"] != os.getpid()
    wait_until(lambda: gone(first["pid"]))


def test_what_it_raises_comes_back_as_text_without_secrets(work: Any) -> None:
    with ProcessCalls(work.fail) as calls:
        with pytest.raises(RemoteCallError, match=r"LookupError: .*no row at redis://:\*\*\*@h") as caught:
            calls.run("redis://:hunter2@h")
        assert caught.value.error_type == "LookupError"
        assert "in fail" in caught.value.remote_traceback
        assert "hunter2" not in caught.value.remote_traceback


def test_at_the_limit_the_process_and_what_it_started_are_killed(work: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with ProcessCalls(work.hang) as calls:
        with pytest.raises(
            CallTimeoutError, match=r"hang ran past its limit of 1.5 s; its process was killed"
        ):
            calls.run(str(pids), timeout=1.5)
        assert calls.killed_total == 1
        child, grandchild = map(int, pids.read_text().split())
        wait_until(lambda: gone(child) and gone(grandchild))


def test_a_child_that_dies_is_said_and_the_next_call_gets_a_new_one(work: Any) -> None:
    with ProcessCalls(work.die) as calls:
        for _ in range(2):
            with pytest.raises(IsolationError, match="died: signal SIGKILL"):
                calls.run()


def test_sys_exit_in_a_call_is_its_failure_not_the_end_of_the_child(work: Any) -> None:
    with ProcessCalls(work.leave) as calls, pytest.raises(RemoteCallError, match="SystemExit: 3"):
        calls.run()


def test_what_is_not_json_is_refused_on_the_way_in_and_out(work: Any) -> None:
    with (
        ProcessCalls(work.add) as calls,
        pytest.raises(IsolationError, match="arguments of add are not JSON"),
    ):
        calls.run({1}, {2})
    with ProcessCalls(work.odd) as calls, pytest.raises(RemoteCallError, match="not JSON serializable"):
        calls.run()


def test_only_functions_that_a_child_can_import_are_taken(work: Any) -> None:
    with ProcessCalls(work.Things.double) as calls:
        assert calls.run(4) == 8
    with pytest.raises(IsolationError, match=r"top level of a module, not a lambda"):
        ProcessCalls(lambda: None)


def test_cancelling_the_wait_kills_the_child(work: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def main() -> None:
        with ProcessCalls(work.hang) as calls:
            task = asyncio.create_task(calls.run_async(str(pids)))
            await asyncio.to_thread(wait_until, pids.exists)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    child, grandchild = map(int, pids.read_text().split())
    wait_until(lambda: gone(child) and gone(grandchild))


def test_a_script_can_use_its_own_functions_and_its_end_ends_the_children(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, time
        from conquiet.flow.process import ProcessCalls
        def double(x): return {"value": 2 * x, "pid": os.getpid()}
        def hang(): print(os.getpid(), flush=True); time.sleep(600)
        if __name__ == "__main__":
            assert ProcessCalls(double).run(21)["value"] == 42
            ProcessCalls(hang).run()
        """)
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: gone(child))


def test_the_childs_start_is_not_the_calls_time_and_a_limit_is_not_handed_on(work: Any) -> None:
    with ProcessCalls(work.add) as calls:
        assert (
            calls.run(1, 2, timeout=0.5)["sum"] == 3
        )  # an interpreter takes longer than this to start and import
        text = "x" * 2_000_000
        assert calls.run(text, text)["sum"] == text * 2


def test_a_function_that_cannot_be_imported_there_is_said(work: Any) -> None:
    with ProcessCalls(work.add) as calls:
        Path(work.__file__).write_text("raise RuntimeError('broken module')")
        with pytest.raises(RemoteCallError, match="broken module"):
            calls.run(1, 2)
