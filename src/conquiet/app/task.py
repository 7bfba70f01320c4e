"""A task: a function that can be queued."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from conquiet.app.arguments import RESERVED, Parameters
from conquiet.checks import MAX_INT, checked_int, checked_name, checked_seconds
from conquiet.errors import JobConfigError, PayloadError, TaskArgumentError
from conquiet.jobs import Job, NewJob, RetrySchedule

if TYPE_CHECKING:
    from conquiet.app.application import Conquiet

__all__ = ["Call", "Task", "TaskCall"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

Call = tuple[Any, ...] | list[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """The options of an enqueued call."""

    connection: Any = None
    delay: float | None = None
    at: datetime | None = None
    priority: int | None = None
    id: str | None = None
    correlation_id: str | None = None


class Task(Generic[P, R]):
    """A function decorated with `@app.task`. Calling it calls the function; `enqueue` queues the call.

    `enqueue` takes the arguments of the function and also `connection=`, `delay=` and `at=`. Type checkers check the
    arguments only of a call without these three; otherwise use `task.options(delay=5).enqueue(…)`.
    """

    def __init__(
        self,
        app: Conquiet,
        function: Callable[P, R],
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetrySchedule | None = None,
        timeout: float | None = None,
        priority: int = 5,
    ) -> None:
        _check_function(function)
        self.app = app
        self.function = function
        self.name = checked_name("name", name or function.__name__, error=JobConfigError)
        self.queue = checked_name("queue", queue, error=JobConfigError)
        if retry is not None and not isinstance(retry, RetrySchedule):
            raise JobConfigError(f"task {self.name!r}: retry must be a RetrySchedule, not {retry!r}")
        self.retry = retry
        self.timeout = (
            None
            if timeout is None
            else checked_seconds("timeout", timeout, above_zero=True, error=JobConfigError)
        )
        self.priority = checked_int("priority", priority, -(2**31), MAX_INT, error=JobConfigError)
        self.parameters = Parameters(self.name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly: no queue, no retries, no time limit."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def arguments_of(self, job: Job) -> Mapping[str, Any] | None:
        """Return the arguments of a job of this task, or None if the job is not for this task."""
        return self.parameters.stored(job.payload)

    # A ParamSpec cannot be combined with keyword options: with one of these, arguments are checked only at run time.
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job: ...
    @overload
    def enqueue(
        self, *args: Any, connection: Any, delay: float | None = ..., at: datetime | None = ..., **kwargs: Any
    ) -> Job: ...
    @overload
    def enqueue(self, *args: Any, delay: float, connection: Any = ..., **kwargs: Any) -> Job: ...
    @overload
    def enqueue(self, *args: Any, at: datetime, connection: Any = ..., **kwargs: Any) -> Job: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Queue a call. It runs after `delay` seconds, or at the time `at`.

        With `connection` it is queued in the transaction of that connection.
        """
        return TaskCall[..., R](self, _options_in(kwargs)).enqueue(*args, **kwargs)

    @overload
    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job: ...
    @overload
    async def enqueue_async(
        self, *args: Any, connection: Any, delay: float | None = ..., at: datetime | None = ..., **kwargs: Any
    ) -> Job: ...
    @overload
    async def enqueue_async(self, *args: Any, delay: float, connection: Any = ..., **kwargs: Any) -> Job: ...
    @overload
    async def enqueue_async(self, *args: Any, at: datetime, connection: Any = ..., **kwargs: Any) -> Job: ...
    async def enqueue_async(self, *args: Any, **kwargs: Any) -> Job:
        """`enqueue` for asyncio; `connection` is an asyncio connection, too."""
        return await TaskCall[..., R](self, _options_in(kwargs)).enqueue_async(*args, **kwargs)

    def enqueue_many(
        self,
        calls: Iterable[Call],
        *,
        connection: Any = None,
        delay: float | None = None,
        at: datetime | None = None,
    ) -> list[str]:
        """Queue many calls in one step, all or none, and return their ids.

        Each call is a tuple of arguments or a dict of named arguments.
        """
        return TaskCall(self, EnqueueOptions(connection=connection, delay=delay, at=at)).enqueue_many(calls)

    def options(
        self,
        *,
        connection: Any = None,
        delay: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        id: str | None = None,
        correlation_id: str | None = None,
    ) -> TaskCall[P, R]:
        """Return this task with options for `enqueue`: `task.options(priority=1, id="a").enqueue(…)`."""
        options = EnqueueOptions(
            connection=connection, delay=delay, at=at, priority=priority, id=id, correlation_id=correlation_id
        )
        return TaskCall(self, options)


class TaskCall(Generic[P, R]):
    """A task with options for `enqueue`; returned by `task.options(…)`."""

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        new = self._new(args, kwargs)
        with self._arguments_named([new]):
            store = self._task.app.stores.current()
            return store.enqueue_job(self._task.queue, new, connection=self._options.connection)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        new = self._new(args, kwargs)
        with self._arguments_named([new]):
            store = await self._task.app.stores.for_loop()
            return await store.enqueue_job(self._task.queue, new, connection=self._options.connection)

    def enqueue_many(self, calls: Iterable[Call]) -> list[str]:
        if self._options.id is not None:
            raise JobConfigError("id= is for one job: enqueue_many creates an id for each job")
        news = []
        for number, call in enumerate(calls):
            try:
                news.append(self._new(*_split(call)))
            except TaskArgumentError as error:
                raise TaskArgumentError(f"call {number} of enqueue_many: {error}") from None
        with self._arguments_named(news):
            store = self._task.app.stores.current()
            return store.enqueue_many(self._task.queue, news, connection=self._options.connection)

    def _new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        task, options = self._task, self._options
        return NewJob(
            payload=task.parameters.payload(args, kwargs),
            id=options.id,
            priority=task.priority if options.priority is None else options.priority,
            delay=self._delay(),
            at=options.at,
            max_retries=None if task.retry is None else task.retry.max_retries,
            correlation_id=options.correlation_id,
        )

    def _delay(self) -> float:
        at, delay = self._options.at, self._options.delay
        if at is not None and delay is not None:
            raise JobConfigError("delay= and at= exclude each other: give one of them")
        return 0.0 if delay is None else checked_seconds("delay", delay, error=JobConfigError)

    @contextmanager
    def _arguments_named(self, news: Sequence[NewJob]) -> Iterator[None]:
        """If a payload is refused, name the argument that is the cause in the error."""
        try:
            yield
        except PayloadError as error:
            for new in news:
                named = self._task.parameters.explain(new.payload, error)
                if named is not error:
                    raise named from None
            raise


def _options_in(kwargs: dict[str, Any]) -> EnqueueOptions:
    """Remove the options from the keyword arguments and return them."""
    return EnqueueOptions(**{name: kwargs.pop(name) for name in RESERVED if name in kwargs})


def _split(call: Call) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, tuple | list):
        return tuple(call), {}
    raise TaskArgumentError(
        f"a call is a tuple of arguments or a dict of named ones, not {type(call).__name__}: "
        "for a single argument write (value,). Nothing was queued"
    )


def _check_function(function: Any) -> None:
    if not inspect.isfunction(function):
        raise JobConfigError(f"a task must be a function (def or async def), not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise JobConfigError(f"{function.__qualname__} is a generator: calling it would not run it")
    if next(iter(inspect.signature(function).parameters), None) in ("self", "cls"):
        raise JobConfigError(
            f"{function.__qualname__} is a method: its object cannot be queued. Use a function"
        )
