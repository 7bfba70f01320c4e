"""The suite as a user runs it: it needs none of our plugins, and a wrong store fails it."""

from __future__ import annotations

import sys

import pytest

USERS_FILE = """
import random

import pytest

from conquiet.jobs import JobStore, PayloadLimits, RetrySchedule
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.operations import JobOperations
from conquiet.testing import ManualClock
from conquiet.testing.store_suite import StoreSuite


class Backend(MemoryBackend):
    {body}


class Stores:
    def __init__(self):
        self.clock = ManualClock()
        self.backend = Backend(self.clock)

    def open(self, **options):
        defaults = dict(retry=RetrySchedule(), random=random.random, max_lease_expiries=20, limits=PayloadLimits())
        return JobStore("mine://", JobOperations(self.backend, **(defaults | options)), "auto")

    def advance(self, seconds):
        self.clock.advance(seconds)


class TestMine(StoreSuite):
    @pytest.fixture
    def stores(self):
        return Stores()
"""
WRONG = '''
    def settle(self, settlements, connection, begins=()):
        """Finishes jobs by their id, whoever holds them."""
        tokens = [self._jobs[end.job_id].row.lease_token if end.job_id in self._jobs else None for end in settlements]
        theirs = [end._replace(token=token or end.token) for end, token in zip(settlements, tokens)]
        current = yield from super().settle(theirs, connection, begins)
        begun = {token for _, token in begins if token in current}
        return begun | {mine.token for mine, end in zip(settlements, theirs) if end.token in current}
'''


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *arguments: str, body: str = "pass"
) -> pytest.RunResult:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a user has other plugins, or none
    pytester.makepyfile(test_mine=USERS_FILE.replace("{body}", body))
    return pytester.runpytest_subprocess("--strict-markers", "-W", "error", "-q", *arguments)


@pytest.mark.clause("J-02")
def test_a_good_store_passes_it(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = run(pytester, monkeypatch).parseoutcomes()
    assert outcomes.pop("passed") > 200
    assert outcomes == {}


@pytest.mark.clause("J-09")
def test_a_store_that_settles_by_id_does_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, "-k", "stale or settl", body=WRONG.strip())
    assert result.parseoutcomes()["failed"] > 10
    result.stdout.fnmatch_lines(["E*DID NOT RAISE*StaleLeaseError*"])
    result.stdout.fnmatch_lines(["FAILED*test_a_stale_lease_is_refused*reclaimed*"])
    # Failures show the values.
    result.stdout.fnmatch_lines(["E*assert [[]True, True[]] == [[]False, False[]]"])


def test_who_forgets_the_fixture_is_told(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        "from conquiet.testing.store_suite import StoreSuite\nclass TestMine(StoreSuite):\n    pass"
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_subprocess("-q", "-k", "test_first_in_first_out")
    assert result.parseoutcomes()["errors"] == 1
    result.stdout.fnmatch_lines(["*NotImplementedError: write a fixture `stores`*"])


def test_importing_the_testing_package_needs_no_pytest(pytester: pytest.Pytester) -> None:
    code = "import sys; sys.modules['pytest'] = None; import conquiet.testing; print(conquiet.testing.ManualClock)"
    assert pytester.run(sys.executable, "-c", code).ret == 0
