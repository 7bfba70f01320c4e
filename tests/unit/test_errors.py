from __future__ import annotations

import inspect
import time

import pytest

from conquiet import errors
from conquiet.errors import ConquietError, redact


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
    assert time.process_time() - began < 10  # hours, where the time grows with the square


def test_one_root_and_the_docstring_draws_the_whole_tree() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]
    assert all(issubclass(c, ConquietError) for c in classes)
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line and "─" in line]
    parents: list[str] = ["ConquietError"]
    for line in drawn:
        depth = line.index("─") // 4
        name = line.split("─")[-1].split()[0]
        parents[depth:] = [name]
        assert parents[depth - 1] in [base.__name__ for base in getattr(errors, name).__bases__]
    assert {c.__name__ for c in classes} == {
        "ConquietError",
        *(line.split("─")[-1].split()[0] for line in drawn),
    }
