"""Error texts are made storable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.errors import RemoteCallError
from conquiet.jobs.error_text import error_text, error_texts


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


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.clause("J-27")
def test_an_error_of_a_child_process_is_shown_as_it_was_there() -> None:
    long = "".join(f"  line {number} ä\n" for number in range(5_000))
    error = raised(RemoteCallError("KeyError", "'colour'", f"Traceback\n{long}KeyError: 'colour'\n"))
    text, kind, trace = error_texts(error)
    assert (text, kind) == ("'colour'", "KeyError")
    assert trace is not None
    assert trace.startswith("  line ")
    assert trace.endswith("  line 4999 ä\nKeyError: 'colour'")
    assert 8_000 < len(trace.encode()) <= 8_192


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("error", [ValueError("never raised"), "only text"])
def test_what_was_not_raised_has_no_traceback(error: BaseException | str) -> None:
    assert error_texts(error).traceback is None


@pytest.mark.clause("J-27")
@given(st.text(st.characters(codec=None), max_size=200))
def test_a_traceback_can_be_stored_whatever_is_in_it(text: str) -> None:
    trace = error_texts(raised(ValueError(text))).traceback
    assert trace is not None
    assert "\0" not in trace
    trace.encode()


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("before", range(8_000, 8_200, 7))
def test_a_traceback_that_is_cut_inside_a_password_does_not_show_the_rest_of_it(before: int) -> None:
    """The cut is counted from the end."""
    lines = f"postgresql://app:hunter2-and-very-long@db/prod is away\n{'x' * 60}\n" + "y\n" * (before // 2)
    assert "hunter2" not in (error_texts(raised(ValueError(lines))).traceback or "")
    assert "very-long" not in (error_texts(raised(ValueError(lines))).traceback or "")
