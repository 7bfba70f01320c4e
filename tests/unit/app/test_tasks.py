"""Defining tasks and queueing their calls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conquiet import Conquiet, ConquietError
from conquiet.errors import PayloadError, TaskArgumentError
from conquiet.jobs import DuplicateJobError, JobConfigError, JobState, PayloadLimits, RetrySchedule
from conquiet.testing import ManualClock, enqueued


@pytest.fixture
def app() -> Iterator[Conquiet]:
    with Conquiet("memory://", clock=ManualClock()) as opened:
        yield opened


def test_calling_a_task_calls_its_function(app: Conquiet) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @app.task(queue="slow")
    async def wait(a: int) -> int:
        return a

    assert add(1, b=2) == 3
    assert asyncio.run(wait(5)) == 5
    assert (vars(add)["__name__"], add.__doc__, add.name, add.queue) == ("add", "Adds.", "add", "default")
    assert (add.is_async, wait.is_async) == (False, True)
    assert app.queues == ("default", "slow")
    assert dict(app.tasks) == {"add": add, "wait": wait}
    assert app.store.list() == []


def test_a_job_holds_the_call_and_the_options_of_its_task(app: Conquiet) -> None:
    @app.task(queue="mails", priority=2, retry=RetrySchedule(max_retries=7))
    def send(to: str, *more: str, subject: str = "none", **headers: int) -> None: ...

    job = send.enqueue("ann", "bob", subject="hello", x=1)
    assert job.payload == {
        "task": "send",
        "arguments": {"to": "ann", "more": ["bob"], "subject": "hello", "headers": {"x": 1}},
    }
    assert (job.queue, job.priority, job.max_retries, job.state) == ("mails", 2, 7, JobState.READY)
    assert send.enqueue(to="ann").payload["arguments"] == {"to": "ann"}  # the worker applies its own defaults

    job = send.options(priority=9, id="mine", correlation_id="request 7").enqueue("ann")
    assert (job.id, job.priority, job.correlation_id) == ("mine", 9, "request 7")
    with pytest.raises(DuplicateJobError):
        send.options(id="mine").enqueue("ann")


def test_later(app: Conquiet) -> None:
    @app.task
    def send(to: str) -> None: ...

    now = send.enqueue("first").enqueued_at  # the clock of this store stands still
    ready = {
        job.payload["arguments"]["to"]: job.retry_at
        for job in (
            send.enqueue("now"),
            send.enqueue("delay", delay=90),
            send.enqueue("at", at=now + timedelta(hours=1)),
            send.enqueue("past", at=now - timedelta(hours=1)),
            send.options(delay=5).enqueue("options"),
        )
    }
    assert ready == {
        "now": None,
        "delay": now + timedelta(seconds=90),
        "at": now + timedelta(hours=1),
        "past": None,
        "options": now + timedelta(seconds=5),
    }
    send.enqueue_many([("many",)], delay=7)
    assert enqueued(send, "many")[0].retry_at == now + timedelta(seconds=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "delay must be a number of seconds, at least 0"),
        ({"delay": 1, "at": datetime.now(UTC)}, "delay= and at= exclude each other"),
        ({"at": datetime(2030, 1, 1)}, "at= must be a datetime with a time zone"),
        ({"at": "tomorrow"}, "at= must be a datetime with a time zone"),
        ({"connection": object()}, "in memory|no transactions|connection"),
    ],
)
def test_options_are_checked(app: Conquiet, options: dict[str, Any], message: str) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(JobConfigError, match=message):
        send.enqueue(**options)
    assert app.store.list() == []


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (),
            {},
            "task 'send': missing a required argument: 'to'. It takes \\(to, copies=…\\). Nothing was queued",
        ),
        (("ann", 1, 2), {}, "too many positional arguments"),
        (("ann",), {"copy": 1}, "got an unexpected keyword argument 'copy'"),
        (("ann",), {"to": "bob"}, "multiple values for argument 'to'"),
    ],
)
def test_arguments_that_the_function_would_refuse(
    app: Conquiet, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    @app.task
    def send(to: str, copies: int = 1) -> None: ...

    for enqueue in (send.enqueue, send.options(delay=1).enqueue):
        with pytest.raises(TaskArgumentError, match=message) as caught:
            enqueue(*args, **kwargs)
        assert isinstance(caught.value, TypeError)
    with pytest.raises(TaskArgumentError, match=message):
        asyncio.run(send.enqueue_async(*args, **kwargs))
    assert app.store.list() == []


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", datetime.now(UTC), float("nan"), {1: 2}, "\ud800"]
)
def test_an_argument_that_is_not_json_is_named(app: Conquiet, value: Any) -> None:
    @app.task
    def send(to: str, when: Any) -> None: ...

    with pytest.raises(
        PayloadError, match="task 'send': the argument 'when' cannot be queued: .* Nothing was"
    ):
        send.enqueue("ann", value)
    with pytest.raises(PayloadError, match="the argument 'when' cannot be queued"):
        send.enqueue_many([("ann", 1), ("bob", value)])
    with pytest.raises(PayloadError, match="the argument 'when' cannot be queued"):
        asyncio.run(send.enqueue_async("ann", when=[value]))
    assert app.store.list() == []


def test_a_call_that_is_too_large_is_refused() -> None:
    with Conquiet("memory://", limits=PayloadLimits(max_bytes=1_000)) as app:

        @app.task
        def send(text: str) -> None: ...

        with pytest.raises(PayloadError, match="over the limit of 1000"):
            send.enqueue("x" * 1_000)


def test_many_calls_or_none(app: Conquiet) -> None:
    @app.task
    def send(to: str, copies: int = 1) -> None: ...

    ids = send.enqueue_many([("ann",), {"to": "bob", "copies": 2}, ["cy", 3]])
    assert [app.store.get(job_id).payload["arguments"] for job_id in ids] == [
        {"to": "ann"},
        {"to": "bob", "copies": 2},
        {"to": "cy", "copies": 3},
    ]
    assert send.enqueue_many([]) == []
    for calls, message in [
        ([("dee",), ()], "call 1 of enqueue_many: task 'send': missing a required argument: 'to'"),
        ([("dee",), "eve"], "call 1 of enqueue_many: a call is a tuple .* write \\(value,\\)"),
    ]:
        with pytest.raises(TaskArgumentError, match=message):
            send.enqueue_many(calls)  # type: ignore[arg-type]
    with pytest.raises(JobConfigError, match="id= is for one job"):
        send.options(id="a").enqueue_many([("dee",)])
    assert len(app.store.list()) == 3


@pytest.mark.parametrize("name", ["connection", "delay", "at"])
def test_a_parameter_with_the_name_of_an_option_is_refused(app: Conquiet, name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def send(to, *, {name}=None): ...", namespace)
    with pytest.raises(JobConfigError, match=f"task 'send' has a parameter '{name}', which is an option"):
        app.task(namespace["send"])
    assert dict(app.tasks) == {}


class Mailer:
    def send(self) -> None: ...


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (print, "a task must be a function"),
        (Mailer, "a task must be a function"),
        (5, "a task must be a function"),
        (Mailer.send, "Mailer.send is a method"),
        (numbers, "numbers is a generator"),
    ],
)
def test_what_cannot_be_a_task(app: Conquiet, function: Any, message: str) -> None:
    with pytest.raises(JobConfigError, match=message):
        app.task(function)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue": ""}, "queue must be a non-empty str"),
        ({"name": "x" * 256}, "name must be at most 255"),
        ({"timeout": 0}, "timeout must be a number of seconds, above 0"),
        ({"priority": 1.5}, "priority must be an int"),
        ({"retry": 3}, "task 'send': retry must be a RetrySchedule, not 3"),
    ],
)
def test_settings_are_checked(app: Conquiet, settings: dict[str, Any], message: str) -> None:
    def send() -> None: ...

    with pytest.raises(JobConfigError, match=message):
        app.task(**settings)(send)


def test_a_name_belongs_to_one_task(app: Conquiet) -> None:
    def first() -> None: ...

    app.task(first)
    again = app.task(first)  # as a notebook does when a cell runs again
    assert app.tasks["first"] is again

    with pytest.raises(JobConfigError, match="there is already a task 'first' in .*test_tasks"):

        @app.task(name="first")
        def second() -> None: ...


def test_the_store_is_opened_at_first_use_and_again_after_closing() -> None:
    app = Conquiet("nonsense://ann:hunter2@host")
    assert repr(app) == "<Conquiet 'nonsense://ann:***@host' with 0 tasks>"
    with pytest.raises(JobConfigError, match="names no job store: use sqlite:///jobs.db"):
        _ = app.store
    app.close()
    with Conquiet("memory://") as app:
        first = app.store
        assert app.store is first
    assert app.store is not first
    app.close()


@pytest.mark.clause("P-12")
def test_importing_conquiet_does_not_import_the_app_and_the_app_imports_no_client() -> None:
    code = """
import sys, conquiet
assert "Conquiet" in dir(conquiet)
assert "conquiet.app" not in sys.modules and "conquiet.jobs" not in sys.modules
from conquiet import Conquiet
app = Conquiet("memory://")
print(*sorted({"redis", "psycopg", "pyspark", "sqlalchemy", "numpy", "typer"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    import conquiet

    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = conquiet.Nonsense


def test_errors_are_of_the_family() -> None:
    assert issubclass(TaskArgumentError, ConquietError)
