"""worker: runs an app's tasks, drains at SIGTERM, and reports what it cannot use."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from conquiet.cli.verbs.worker import parsed_queues
from conquiet.errors import SettingsError
from conquiet.jobs import JobState, NewJob, open_store
from tests.acceptance.cli.command import Shell

TASKS = """
import sys, time
from pathlib import Path
from conquiet import Conquiet

app = Conquiet("sqlite:///jobs.db")
in_memory = Conquiet("memory://")
lost = Conquiet("postgresql://app:hunter2@127.0.0.1:1/shop")
empty = Conquiet("sqlite:///empty.db")
something = 3

@app.task(queue="emails")
def send(to):
    with Path("sent").open("a") as file:
        file.write(to + "\\n")

@app.task(queue="reports")
def hold(name):
    Path(f"{name} began").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
    Path(f"{name} ended").touch()

@app.task(queue="hung", timeout=0.2)
def hang():
    time.sleep(600)

@app.task(queue="hung", timeout=10)
def leave(name):
    Path(name).touch()
    sys.exit(3)

@lost.task
def nothing(): ...
"""


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(TASKS)
    shell.environment["CONQUIET_DSN"] = "sqlite:///jobs.db"
    open_store(f"sqlite:///{shell.folder}/jobs.db").close()
    return shell


def enqueue(shop: Shell, *names: str) -> None:
    """Enqueue calls of `hold`, as the app itself would."""
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        store.enqueue_many("reports", [{"task": "hold", "arguments": {"name": name}} for name in names])


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)


def test_enqueued_calls_are_run(shop: Shell) -> None:
    assert shop("enqueue", "emails", "-", "--task", "send", stdin='{"to": "ann"}\n{"to": "bob"}\n').code == 0
    run = shop("worker", "shop:app", "--queues", "emails:1", "--until-idle", "--json")
    assert run.json == {"claimed": 2, "succeeded": 2, "failed": 0, "released": 0, "lost": 0, "abandoned": 0}
    assert (shop.folder / "sent").read_text() == "ann\nbob\n"
    (shop.folder / "conquiet.toml").write_text('app = "shop:app"\nqueues = "emails"\nconcurrency = 2\n')
    assert "claimed 0" in shop("worker", "--until-idle").out  # the file names the app and its queues


def test_sigterm_finishes_what_runs_and_leaves_the_rest(shop: Shell) -> None:
    enqueue(shop, "first", "second")
    with shop.start("worker", "shop:app", "--queues", "reports:1", "--metrics-port", "0") as process:
        assert process.stderr is not None
        wait_for(shop.folder / "first began")
        serving = next(line for line in process.stderr if line.startswith("serving "))
        with urlopen(serving.split()[1]) as page:
            assert b"python_info" in page.read()
        process.send_signal(signal.SIGTERM)
        assert any(
            "stopping: no more jobs are claimed; jobs still running: 1" in line for line in process.stderr
        )
        (shop.folder / "go on").touch()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert "succeeded 1" in out
    assert (shop.folder / "first ended").exists()
    assert not (shop.folder / "second began").exists()
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        assert [job.state for job in store.list()] == [JobState.SUCCEEDED, JobState.READY]


def test_the_second_ctrl_c_does_not_wait(shop: Shell) -> None:
    enqueue(shop, "only")
    with shop.start("worker", "shop:app", "--isolation", "process", "--json") as process:
        wait_for(shop.folder / "only began")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert '"released": 1' in out
    assert not (shop.folder / "only ended").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_handlers_of_the_app_are_called_too(shop: Shell, number: signal.Signals) -> None:
    (shop.folder / "own.py").write_text(
        "import signal\nfrom pathlib import Path\nfrom shop import app\n"
        f"signal.signal({number:d}, lambda *_: Path('told').touch())\n"
    )
    enqueue(shop, "only")
    with shop.start("worker", "own:app", "--json") as process:
        wait_for(shop.folder / "only began")
        process.send_signal(number)
        wait_for(shop.folder / "told")
        (shop.folder / "go on").touch()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert '"succeeded": 1' in out


def test_what_cannot_be_run_is_told(shop: Shell) -> None:
    (shop.folder / "needy.py").write_text("import nothing_of_that_name\n")
    (shop.folder / "broken.py").write_text("1 / 0\n")
    shop("worker", "shop:app", "--queues", "emials").refused(2, "'emials'", "'emails', 'reports'")
    results = shop.refuses(
        {
            "worker": (2, "no app is given", "CONQUIET_APP", "shop.tasks:app"),
            "worker shop": (2, "package.module:name"),
            "worker nowhere:app": (2, "no module 'nowhere'"),
            "worker shop:application": (2, "shop has no 'application'"),
            "worker shop:something": (2, "is not an app but a int"),
            "worker shop:empty": (2, "has no tasks"),
            "worker shop:in_memory": (2, "memory://"),
            "worker shop:app --isolation box": (2, "thread", "box"),
            "worker shop:app --concurrency 0": (2, "--concurrency"),
            "worker shop:app --unknown-after soon": (2, "--unknown-after must be a duration above 0"),
            "worker shop:lost": (3, "Connection refused", "the DSN of shop:lost"),
            "worker needy:app": (2, "it needs 'nothing_of_that_name'"),
            "worker broken:app": (2, "ZeroDivisionError", "--debug"),
        }
    )
    assert "hunter2" not in "".join(done.err for done in results)


def test_a_worker_whose_tasks_all_hang_replaces_itself(shop: Shell) -> None:
    """One process runs at most 31 of the jobs that hang: 15 that it has given up, and 16 at a time."""
    with open_store(f"sqlite:///{shop.folder}/jobs.db") as store:
        store.enqueue_many("hung", [NewJob({"task": "hang", "arguments": {}}, max_retries=0)] * 40)
        process = shop.start(
            "worker", "shop:app", "--queues", "hung", "--concurrency", "16", "--prefetch", "0"
        )
        store.enqueue("hung", {"task": "leave", "arguments": {"name": "left"}}, max_retries=0, priority=9)
        wait_for(shop.folder / "left")
        while store.stats("hung")["hung"].failed < 41:
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "this worker replaces itself by a fresh process: 16 calls ran past their time limit" in err + out


@pytest.mark.parametrize(
    ("text", "queues"),
    [("a", {"a": None}), ("a:10,b", {"a": 10, "b": None}), (" a : b:3 , c", {"a : b": 3, "c": None})],
)
def test_queues_with_and_without_numbers(text: str, queues: dict[str, int | None]) -> None:
    assert parsed_queues(text, "--queues") == queues


@pytest.mark.parametrize("text", ["", "a,", ":3", "a:0", "a:-1", "a:x", "a,a", "a:1,a"])
def test_queues_that_are_no_list_of_queues(text: str) -> None:
    with pytest.raises(SettingsError, match="--queues is written as emails:10,reports"):
        parsed_queues(text, "--queues")
