"""Changes of the real code, made in the running process and undone again.

A mutant names its places (`module:Class.method`, `module:STATEMENT`, or `module:_SQL[statement]`) and the text to replace there. The text
must occur there exactly once: if the code has changed, the mutant fails loudly instead of changing nothing.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from conquiet.verify.history import Violation


class PlaceNotFoundError(AssertionError):
    """The code that a mutant changes is gone: see what it has become, and adapt the mutant."""


@dataclass(frozen=True)
class Edit:
    place: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    name: str
    run: str  # the quick run that must catch it
    expects: tuple[
        str, ...
    ]  # the kinds of violation that the bug causes: the mutant is caught when one of them is seen
    edits: tuple[Edit, ...]
    most_seeds: int = 3_000

    def is_seen_in(self, violations: Iterable[Violation]) -> bool:
        return any(violation.kind in self.expects for violation in violations)

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(_edited(edit))
            yield


def mutant(
    name: str, run: str, expects: tuple[str, ...], *edits: tuple[str, str, str], most_seeds: int = 3_000
) -> Mutant:
    return Mutant(name, run, expects, tuple(Edit(*edit) for edit in edits), most_seeds)


@contextmanager
def _edited(edit: Edit) -> Iterator[None]:
    owner, key = _found(edit.place)
    if isinstance(owner, dict):
        original = owner[key]
        owner[key] = _replaced(original, edit)
        try:
            yield
        finally:
            owner[key] = original
        return
    original = inspect.getattr_static(owner, key)
    is_text = isinstance(original, str)
    setattr(owner, key, _replaced(original, edit) if is_text else _remade(original, edit))
    try:
        yield
    finally:
        setattr(owner, key, original)


def _found(place: str) -> tuple[Any, str]:
    """The object that holds the function or statement, and its name there."""
    module_name, _, path = place.partition(":")
    owner: Any = importlib.import_module(module_name)
    if path.endswith("]"):
        table, _, key = path[:-1].partition("[")
        owner = getattr(owner, table, None)
        if not isinstance(owner, dict) or key not in owner:
            raise PlaceNotFoundError(f"there is no {place}")
        return owner, key
    *parents, key = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if not hasattr(owner, key):
        raise PlaceNotFoundError(f"there is no {place}")
    return owner, key


def _remade(function: Any, edit: Edit) -> Any:
    source = getattr(function, "mutant_source", None) or textwrap.dedent(inspect.getsource(function))
    source = _replaced(source, edit)
    made: dict[str, Any] = {}
    code = compile(source, f"<mutant of {edit.place}>", "exec", __future__.annotations.compiler_flag)
    exec(code, function.__globals__, made)
    remade = made[function.__name__]
    remade.mutant_source = source  # for the next edit at the same place
    return remade


def _replaced(text: str, edit: Edit) -> str:
    if text.count(edit.old) != 1:
        raise PlaceNotFoundError(
            f"{edit.place}: {edit.old!r} occurs {text.count(edit.old)} times, not once. The text is now:\n{text}"
        )
    return text.replace(edit.old, edit.new)
