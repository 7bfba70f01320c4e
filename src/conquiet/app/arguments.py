"""Converts a task call to a payload and back: `{"task": name, "arguments": {parameter: value}}`.

Arguments are stored by parameter name, so that a job reads like a call and survives a change of the order of the
parameters. Defaults are not stored: the job uses those of the code that runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from conquiet import payload as json_rule
from conquiet.errors import (
    JobConfigError,
    JobRejectedError,
    PayloadError,
    TaskArgumentError,
    TaskMismatchError,
)

__all__ = ["RESERVED", "TASK", "Parameters", "task_name", "task_payload"]

RESERVED = ("connection", "delay", "at")  # keyword arguments of `enqueue` itself
TASK, ARGUMENTS = "task", "arguments"


def task_payload(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a job that calls a task with these arguments."""
    return {TASK: task, ARGUMENTS: arguments}


def task_name(payload: Mapping[str, Any]) -> str | None:
    """Return the name of the task that a payload calls, or None if it does not call a task."""
    name = payload.get(TASK)
    return name if isinstance(name, str) else None


class Parameters:
    """The parameters of a task's function."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        if taken := [option for option in RESERVED if option in self._signature.parameters]:
            raise JobConfigError(
                f"task {name!r} has a parameter {taken[0]!r}, which is an option of enqueue(): give it another name"
            )

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call as a payload. Raise TaskArgumentError if the function does not accept the arguments."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TaskArgumentError(
                f"task {self._name!r}: {error}. It takes {self._shown()}. Nothing was queued"
            ) from None
        return task_payload(self._name, bound.arguments)

    def partial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a subset of the arguments in the form that a payload stores."""
        try:
            return dict(self._signature.bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise TaskArgumentError(f"task {self._name!r}: {error}. It takes {self._shown()}") from None

    def stored(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the arguments stored in a payload, or None if it does not call this task."""
        arguments = payload.get(ARGUMENTS) if task_name(payload) == self._name else None
        return arguments if isinstance(arguments, dict) else None

    def call(self, payload: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in a payload. Raise TaskMismatchError if the function does not accept them (any more)."""
        stored = payload.get(ARGUMENTS)
        if not isinstance(stored, dict):
            raise JobRejectedError(self._refusal(f"its payload has no {ARGUMENTS!r}"))
        if unknown := [key for key in stored if key not in self._signature.parameters]:
            self._reject(f"it has an argument {unknown[0]!r}, which is not a parameter")
        bound = inspect.BoundArguments(
            self._signature, {key: stored[key] for key in self._signature.parameters if key in stored}
        )
        try:
            args, kwargs = bound.args, bound.kwargs
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            self._reject(str(error))
        return args, kwargs

    def explain(self, payload: Mapping[str, Any], error: PayloadError) -> PayloadError:
        """Return `error`, or a new one that names the argument which caused it."""
        for name, value in payload[ARGUMENTS].items():
            try:
                json_rule.encode({name: value})
            except PayloadError as reason:
                return PayloadError(
                    f"task {self._name!r}: the argument {name!r} cannot be queued: {reason}. Nothing was queued"
                )
        return error

    def _reject(self, reason: str) -> NoReturn:
        raise TaskMismatchError(self._refusal(reason))

    def _refusal(self, reason: str) -> str:
        return f"task {self._name!r} cannot be called with the arguments of this job: {reason}. It takes {self._shown()}"

    def _shown(self) -> str:
        """Return the parameters without annotations and without the values of defaults, which may be secret."""
        parts = []
        for parameter in self._signature.parameters.values():
            plain = parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
            parts.append(f"{plain}=…" if parameter.default is not inspect.Parameter.empty else str(plain))
        return f"({', '.join(parts)})"
