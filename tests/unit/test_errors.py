from __future__ import annotations

import inspect
import time
from collections.abc import Iterator

import pytest

from conquiet import errors
from conquiet.errors import ConquietError, redact
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
