"""A test that uses chance says from which seed, and runs the same way again with it."""

from __future__ import annotations

import pytest

from tests.chance import SEED, new_chance


def test_a_seed_that_was_printed_repeats_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SEED, raising=False)
    first, other = new_chance(), new_chance()
    assert first.seed_used != other.seed_used
    printed = capsys.readouterr().out.splitlines()[0]
    assert printed == f"seed {first.seed_used} (again: CONQUIET_SEED={first.seed_used})"
    monkeypatch.setenv(SEED, str(first.seed_used))
    again = new_chance()
    assert [first.random() for _ in range(3)] == [again.random() for _ in range(3)]
