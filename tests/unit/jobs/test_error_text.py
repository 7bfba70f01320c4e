"""Error texts are made storable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.jobs.error_text import error_text


@given(st.text(st.characters(codec=None), max_size=200))
@pytest.mark.clause("J-27")
def test_an_error_text_can_be_stored_whatever_it_is(text: str) -> None:
    shown = error_text(text)
    assert "\0" not in shown
    shown.encode()


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("length", [100, 8_192, 8_193, 1_000_000])
def test_an_error_text_is_not_endless(length: int) -> None:
    assert len(error_text("é " * (length // 2))) == min(length // 2 * 2, 8_192)


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("before", range(8_140, 8_200, 3))
def test_a_password_at_the_cut_is_not_shown_in_part(before: int) -> None:
    assert "hun" not in error_text("-" * before + " postgresql://app:hunter2@db/prod")


@pytest.mark.clause("J-27")
def test_an_error_that_cannot_be_shown_is_told_so() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert error_text(Silent()) == "(its text cannot be shown: RuntimeError)"
