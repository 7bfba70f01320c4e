from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from conquiet import errors
from conquiet.errors import ConquietError, redact
from conquiet.queue import ClaimedMessages, MalformedEntry, QueueMessage
from conquiet.task.exceptions import EngineError, SettleException


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("redis://:hunter2@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("postgresql://ann:hunter2@db/jobs", "postgresql://ann:***@db/jobs"),
        ("cannot reach rediss://ann:hun:ter2@h:1 now", "cannot reach rediss://ann:***@h:1 now"),
        ("postgresql://ann:hun@ter2@db/jobs", "postgresql://ann:***@db/jobs"),
        ("at postgresql://ann:hun/t?e#r2@db/jobs now", "at postgresql://ann:***@db/jobs now"),
        ("host=db user=ann password=hunter2 dbname=x", "host=db user=ann password=*** dbname=x"),
        ("host=db password='hunter2 \\' x' dbname=x", "host=db password=*** dbname=x"),
        ("{'user': 'ann', 'db_password': 'hunter2'}", "{'user': 'ann', 'db_password': ***}"),
        ('{"access_token": "hunter2", "n": 1}', '{"access_token": ***, "n": 1}'),
        ("token: expired", "token: expired"),
        ("postgresql://db/jobs?user=ann&password=hunter2", "postgresql://db/jobs?user=ann&password=***"),
        ("sqlite:///jobs.db and redis://localhost:6379", "sqlite:///jobs.db and redis://localhost:6379"),
        ("at 12:30@home", "at 12:30@home"),
    ],
)
def test_redact_takes_passwords_out_of_dsns_and_nothing_else(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize("piece", ["a", "@", ":", "x://", "x://a:", "password='", 'password="\\', "a "])
def test_redact_takes_no_longer_than_a_text_is_long(piece: str) -> None:
    began = time.process_time()
    redact(piece * (1_000_000 // len(piece)) + "@")
    assert time.process_time() - began < 10  # quadratic time would take hours


FAMILIES = (
    errors.ConfigError,
    errors.UnavailableError,
    errors.OutcomeUnknownError,
    errors.RefusedError,
    errors.NotFoundError,
    errors.LostError,
)
# The roots of the rooms, errors that users' code raises, and errors that no caller can handle.
OUTSIDE = {
    "ConquietError",
    "JobError",
    "QueueError",
    "LocalQueueError",
    "ReconcileError",
    "IsolationError",
    "EngineError",
    "FetchException",
    "JobRejectedError",
    "TaskMismatchError",
    "PlatformError",
    "PlatformRateLimitError",
    "PlatformAuthError",
    "TransactionException",
    "RedactedError",
    "RemoteCallError",
    "ForeignError",
    "MissingDependencyError",
    "ServerNotFoundError",
    "FlowError",
}


def every_error(kind: type[BaseException] = ConquietError) -> Iterator[type[BaseException]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


def families_of(kind: type[BaseException]) -> set[type[BaseException]]:
    """The families of `kind`. OutcomeUnknownError is a special case of UnavailableError and counts only as itself."""
    found = {family for family in FAMILIES if issubclass(kind, family)}
    return {one for one in found if not any(issubclass(other, one) and other is not one for other in found)}


def test_every_error_is_in_one_family_or_outside_on_purpose() -> None:
    public = {
        kind for kind in every_error() if kind.__module__ in ("conquiet.errors", "conquiet.task.exceptions")
    }
    outside = {kind.__name__ for kind in public if not families_of(kind)}
    assert outside == OUTSIDE
    assert {kind.__name__ for kind in every_error() if len(families_of(kind)) > 1} == set()


def test_no_error_is_defined_where_no_caller_can_import_it() -> None:
    for kind in every_error():
        if kind.__module__ == "conquiet.errors":
            assert kind.__name__ in errors.__all__


@pytest.mark.parametrize(
    ("kind", "room"),
    [
        (errors.StoreOutcomeUnknownError, errors.StoreUnavailableError),
        (errors.QueueOutcomeUnknownError, errors.QueueConnectionError),
        (errors.PartialEnqueueError, errors.QueueError),
        (errors.QueueAnswerError, errors.QueueError),
        (SettleException, EngineError),
    ],
)
def test_one_except_catches_the_unknown_outcomes_of_every_room(
    kind: type[Exception], room: type[Exception]
) -> None:
    assert issubclass(kind, errors.OutcomeUnknownError)
    assert issubclass(kind, room)


def test_the_docstring_draws_the_whole_tree() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line and "─" in line]
    parents: list[str] = ["ConquietError"]
    for line in drawn:
        depth = line.index("─") // 4
        name = line.split("─")[-1].split()[0]
        parents[depth:] = [name]
        assert parents[depth - 1] in [base.__name__ for base in getattr(errors, name).__bases__]
    names = [line.split("─")[-1].split()[0] for line in drawn]
    assert len(names) == len(set(names))
    assert {c.__name__ for c in classes} == {"ConquietError", *names}


def made(kind: type[BaseException]) -> BaseException:
    """An error with a value for every parameter of its constructor, and an attribute that was set later."""
    values: dict[str, Any] = {
        "problem": errors.AccessProblem.LOCKED,
        "ids": ["1-1", "1-2"],
        "unknown": 7,
        "depth": 5_000,
        "retry_after": 1.5,
        "category": "BUSINESS",
        "entries": [MalformedEntry("1-1", "orders", "billing", "no JSON", 3)],
        "messages": ClaimedMessages([QueueMessage("1-2", {"n": 1}, "orders", "billing")], ["1-3"]),
        "in_use": True,
        "chosen": True,
        "cause": ValueError("a cause"),
        "report": None,
        "case": SimpleNamespace(report_id=7, platform="fast"),
        "outcome": SimpleNamespace(error_code="fetch_error", detail="away"),
    }
    own = inspect.isfunction(kind.__init__)  # or the interpreter's, which takes anything
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:] if own else []
    plain = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    given = {p.name: values.get(p.name, f"the {p.name}") for p in plain}
    by_position = [given.pop(p.name) for p in plain if p.kind is not p.KEYWORD_ONLY]
    error = kind(*(by_position or ["what happened"]), **given)
    error.add_note("a note")
    error.set_later = "by a caller"  # type: ignore[attr-defined]
    return error


def shown(error: BaseException) -> dict[str, Any]:
    """Everything that a caller can read of an error."""
    hidden = {
        "__traceback__",
        "__cause__",
        "__context__",
        "__suppress_context__",
        "cause",
        "characters_written",
    }
    names = {name for name in dir(error) if not name.startswith("__") or name == "__notes__"} - hidden
    seen = {name: getattr(error, name) for name in names if not callable(getattr(error, name))}
    seen["gone"] = getattr(seen.get("messages"), "gone", None)
    return {"type": type(error), "text": str(error), "repr": repr(error), **seen}


@pytest.mark.parametrize(
    "travelled", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
def test_every_error_survives_a_journey_between_processes(travelled: Callable[[Any], Any]) -> None:
    kinds = {kind for kind in every_error() if kind.__module__.startswith("conquiet.")}
    assert {errors.MalformedEntryError, errors.RemoteCallError, SettleException} <= kinds
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        error = made(kind)
        assert shown(travelled(error)) == shown(error), kind


class _OfAUser(errors.QueueError):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} in {where}")
        self.where = where


def test_so_does_an_error_that_a_user_derives() -> None:
    error = pickle.loads(pickle.dumps(_OfAUser(5, where="the shop")))
    assert (str(error), error.where) == ("5 in the shop", "the shop")


def _refuse(_: int) -> None:
    raise errors.PartialEnqueueError("half of it", ["1-1"], 2)


def test_a_process_pool_hands_it_to_the_caller() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.map_async(_refuse, [1])
        with pytest.raises(errors.PartialEnqueueError, match="half of it") as caught:
            waiting.get(timeout=60)
    assert (caught.value.ids, caught.value.unknown) == (["1-1"], 2)
