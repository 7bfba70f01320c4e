"""The clause ledger, run as the project runs it: as a plugin of a separate pytest process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLAUSES = """
delivered = {delivered}

[S] # streams
S-01 = "The first | clause <of> all"
S-02 = "The second clause"

[J]
J-01 = "Another group"
"""


class Project:
    """A small project in its own folder, with the ledger switched on."""

    def __init__(self, pytester: pytest.Pytester, delivered: str = "[]") -> None:
        self.pytester = pytester
        pytester.makepyprojecttoml('[tool.pytest.ini_options]\ntestpaths = ["tests"]\nxfail_strict = false\n')
        for folder in ("conformance", "tests"):
            pytester.mkdir(folder)
        self.deliver(delivered)

    def deliver(self, groups: str) -> None:
        (self.pytester.path / "conformance" / "clauses.toml").write_text(CLAUSES.format(delivered=groups))

    def tests(self, text: str, name: str = "test_it.py") -> None:
        (self.pytester.path / "tests" / name).write_text("import pytest\n\n" + text)

    def run(self, *arguments: str) -> pytest.RunResult:
        # Without the plugins of installed packages: loading them takes most of the time of each run.
        options = ("--disable-plugin-autoload", "-p", "tests.ledger", "--strict-markers")
        return self.pytester.runpytest_inprocess(*options, *arguments)

    def verdicts(self) -> dict[str, str]:
        return {clause: entry["verdict"] for clause, entry in self.results().items()}

    def results(self) -> dict[str, dict[str, Any]]:
        return json.loads((self.pytester.path / "build" / "conformance.json").read_text())

    @property
    def report(self) -> str:
        return (self.pytester.path / "docs" / "conformance.md").read_text()

    @property
    def has_written(self) -> bool:
        return any((self.pytester.path / folder).exists() for folder in ("build", "docs"))


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def test_a_passing_test_proves_its_clauses(project: Project) -> None:
    project.tests('@pytest.mark.clause("S-01", "J-01")\ndef test_both(): pass\n')
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert project.results() == {
        "S-01": {"tests": ["tests/test_it.py::test_both"], "verdict": "pass"},
        "S-02": {"tests": [], "verdict": "open"},
        "J-01": {"tests": ["tests/test_it.py::test_both"], "verdict": "pass"},
    }


def test_the_page_has_a_row_per_clause_without_markup_from_its_text(project: Project) -> None:
    project.tests('@pytest.mark.clause("S-01")\n@pytest.mark.parametrize("n", [1, 2])\ndef test_n(n): pass\n')
    project.run()
    rows = [line for line in project.report.splitlines() if line.startswith(("| S-", "| J-"))]
    assert rows == [
        "| S-01 | The first \\| clause &lt;of&gt; all | `tests/test_it.py::test_n` | pass |",
        "| S-02 | The second clause |  | open |",
        "| J-01 | Another group |  | open |",
    ]


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("def test_one(): assert False", "fail"),
        ("@pytest.fixture\ndef broken(): raise OSError\n@M\ndef test_one(broken): pass", "fail"),
        (
            "@pytest.fixture\ndef leaky():\n    yield\n    raise OSError\n@M\ndef test_one(leaky): pass",
            "fail",
        ),
        ("def test_one(): pytest.skip('not today')", "open"),
        ("@pytest.mark.skip\ndef test_one(): pass", "open"),
        ("@pytest.mark.xfail\ndef test_one(): assert False", "open"),
        ("@pytest.mark.xfail\ndef test_one(): pass", "open"),
        ("@pytest.mark.xfail(strict=True)\ndef test_one(): pass", "fail"),
        ("@pytest.mark.parametrize('n', [0, 1])\ndef test_one(n): assert n", "fail"),
        ("@pytest.mark.parametrize('n', [0, 1])\ndef test_one(n): n or pytest.skip('half')", "open"),
        ("def test_one(subtests):\n    with subtests.test(): assert False", "fail"),
    ],
)
def test_only_passing_tests_count(project: Project, body: str, verdict: str) -> None:
    marker = '@pytest.mark.clause("S-01")'
    project.tests(body.replace("@M", marker) if "@M" in body else f"{marker}\n{body}\n")
    project.run()
    assert project.verdicts()["S-01"] == verdict


def test_one_failing_test_among_passing_ones_fails_the_clause(project: Project) -> None:
    project.tests('@pytest.mark.clause("S-01")\ndef test_good(): pass\n', "test_a.py")
    project.tests('@pytest.mark.clause("S-01")\ndef test_bad(): assert False\n', "test_b.py")
    project.run()
    assert project.verdicts()["S-01"] == "fail"


def test_markers_of_a_class_and_a_module_count(project: Project) -> None:
    text = 'pytestmark = pytest.mark.clause("S-01")\n@pytest.mark.clause("S-02")\nclass TestIt:\n    def test_it(self): pass\n'
    project.tests(text)
    project.run()
    assert project.verdicts() == {"S-01": "pass", "S-02": "pass", "J-01": "open"}


@pytest.mark.parametrize("selection", [(), ("-k", "other")])
def test_an_unknown_id_ends_the_run_and_is_named(project: Project, selection: tuple[str, ...]) -> None:
    project.tests('@pytest.mark.clause("S-99")\ndef test_it(): pass\n')
    result = project.run(*selection)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not in conformance/clauses.toml: tests/test_it.py::test_it: 'S-99'"])
    assert not project.has_written


@pytest.mark.parametrize("arguments", ["", "1", "id='S-01'"])
def test_a_marker_without_proper_ids_is_refused(project: Project, arguments: str) -> None:
    project.tests(f"@pytest.mark.clause({arguments})\ndef test_it(): pass\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it: the marker takes clause ids*"])


def test_deleting_the_test_of_a_delivered_clause_fails_the_run_and_names_it(
    pytester: pytest.Pytester,
) -> None:
    project = Project(pytester, delivered='["S"]')
    first, second = (f'@pytest.mark.clause("S-0{n}")\ndef test_{n}(): pass\n' for n in (1, 2))
    project.tests(first + second)
    assert project.run().ret == pytest.ExitCode.OK

    project.tests(first)
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["S-02 belongs to a delivered group and has no test", "*= 1 passed in *"])
    assert "J-01" not in "\n".join(line for line in result.outlines if "delivered group and" in line)
    assert project.verdicts()["S-02"] == "open"


@pytest.mark.parametrize(("body", "verdict"), [("pass", "met otherwise"), ("assert False", "fail")])
def test_a_clause_met_by_other_means_is_shown_with_its_decision(
    pytester: pytest.Pytester, body: str, verdict: str
) -> None:
    project = Project(pytester, delivered='["J"]\nmet_otherwise = { J-01 = "0006-threads" }')
    decision = pytester.path / "docs" / "decisions" / "0006-threads.md"
    decision.parent.mkdir(parents=True)
    decision.touch()
    project.tests(f'@pytest.mark.clause("J-01")\ndef test_it(): {body}\n')
    result = project.run("--conformance")
    assert (result.ret == pytest.ExitCode.OK) == (verdict == "met otherwise")
    assert project.results()["J-01"] == {
        "tests": ["tests/test_it.py::test_it"],
        "verdict": verdict,
        "decision": "0006-threads",
    }
    row = f"| J-01 | Another group | `tests/test_it.py::test_it` | {verdict} ([0006](decisions/0006-threads.md)) |"
    assert row in project.report.splitlines()
    result.stdout.fnmatch_lines(
        [f"J-01  {verdict}  Another group", " *docs/decisions/0006-threads.md", " *::test_it"],
        consecutive=True,
    )
    counted = (
        "0 pass, 1 met otherwise, 0 fail" if verdict == "met otherwise" else "0 pass, 0 met otherwise, 1 fail"
    )
    result.stdout.fnmatch_lines([f"{counted}, 2 open; *"])


def test_other_means_prove_nothing_without_a_test(pytester: pytest.Pytester) -> None:
    project = Project(pytester, delivered='["J"]\nmet_otherwise = { J-01 = "0006-threads" }')
    decision = pytester.path / "docs" / "decisions" / "0006-threads.md"
    decision.parent.mkdir(parents=True)
    decision.touch()
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.verdicts()["J-01"] == "open"


def test_the_clauses_that_name_other_means_than_the_code_uses_are_marked() -> None:
    """Each clause that names a class or a structure which a decision replaces."""
    clauses = tomllib.loads((ROOT / "conformance" / "clauses.toml").read_text())
    replaced = ("ThreadPoolExecutor", "semaphore", "heaps", "on a condition")
    named = {
        clause
        for group in clauses.values()
        if isinstance(group, dict)
        for clause, text in group.items()
        if any(means in text for means in replaced)
    }
    assert named == set(clauses["met_otherwise"])


def test_a_skipped_test_does_not_complete_a_delivered_group(pytester: pytest.Pytester) -> None:
    project = Project(pytester, delivered='["J"]')
    project.tests('@pytest.mark.clause("J-01")\ndef test_it(): pytest.skip("later")\n')
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["J-01 belongs to a delivered group and has no passing test"])


def test_a_delivered_group_without_any_test_at_all_fails(pytester: pytest.Pytester) -> None:
    project = Project(pytester, delivered='["J"]')
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "test_1"),
        ("-m", "slow"),
        ("tests/test_it.py",),
        ("--deselect", "tests/test_it.py::test_2"),
        ("--ignore", "tests/test_more.py"),
        ("--collect-only",),
        ("-x",),
    ],
)
def test_a_part_of_the_suite_says_nothing_about_clauses(
    pytester: pytest.Pytester, selection: tuple[str, ...]
) -> None:
    project = Project(pytester, delivered='["S"]')
    project.tests(
        '@pytest.mark.clause("S-01")\ndef test_1(): pass\ndef test_2(): assert False\ndef test_3(): pass\n'
    )
    project.tests("def test_4(): pass\n", "test_more.py")
    result = project.run(*selection, "-o", "markers=slow")
    assert "delivered group" not in result.stdout.str()
    assert not project.has_written


def test_last_failed_is_a_part_of_the_suite(project: Project) -> None:
    project.tests("def test_1(): assert False\n")
    project.tests("def test_2(): pass\n", "test_more.py")
    project.run()
    page = project.pytester.path / "docs" / "conformance.md"
    page.unlink()
    project.run("--lf")
    assert not page.exists()


def test_a_file_that_cannot_be_imported_makes_the_run_incomplete(project: Project) -> None:
    project.tests("import nothing_of_that_name\n")
    assert project.run().ret == pytest.ExitCode.INTERRUPTED
    assert not project.has_written


def test_an_unchanged_page_is_not_written_again(project: Project) -> None:
    project.tests('@pytest.mark.clause("S-01")\ndef test_it(): pass\n')
    project.run()
    page = project.pytester.path / "docs" / "conformance.md"
    before = page.read_bytes(), page.stat().st_mtime_ns
    project.run()
    assert (page.read_bytes(), page.stat().st_mtime_ns) == before


def test_every_clause_is_printed_on_request(project: Project) -> None:
    case = '@pytest.mark.clause("S-02")\n'
    project.tests(
        f'{case}def test_it(): pass\n{case}@pytest.mark.parametrize("n", [1, 2])\ndef test_n(n): pass\n'
    )
    result = project.run("--conformance")
    assert "3 passed in" in result.outlines[-1]
    result.stdout.fnmatch_lines(
        [
            "S-01  open  The first | clause <of> all",
            "S-02  pass  The second clause",
            " *tests/test_it.py::test_it",
            " *tests/test_it.py::test_n (2 cases)",
            "J-01  open  Another group",
            "1 pass, 0 met otherwise, 0 fail, 2 open; delivered groups: none; *",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('delivered = ["X"]\n[S]\nS-01 = "x"', "*delivered names the group 'X'*"),
        ('[S]\nJ-01 = "x"', "*J-01 is in the group S"),
        ('met_otherwise = { S-09 = "0006-x" }\n[S]\nS-01 = "x"', "*met_otherwise names S-09, which*"),
        (
            'met_otherwise = { S-01 = "0006-x" }\n[S]\nS-01 = "x"',
            "*by '0006-x', which is not in docs/decisions",
        ),
    ],
)
def test_a_muddled_catalogue_is_refused(project: Project, text: str, complaint: str) -> None:
    (project.pytester.path / "conformance" / "clauses.toml").write_text(text)
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([complaint])


def test_tests_in_other_processes_prove_clauses_too(project: Project) -> None:
    project.tests(
        '@pytest.mark.clause("S-01")\ndef test_one(): pass\n\n'
        '@pytest.mark.clause("S-02")\ndef test_two(): assert False\n'
    )
    result = project.run("-p", "xdist", "--numprocesses", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.verdicts() == {"S-01": "pass", "S-02": "fail", "J-01": "open"}
    assert project.results()["S-01"]["tests"] == ["tests/test_it.py::test_one"]


def test_a_part_of_the_suite_in_other_processes_says_nothing_about_clauses(project: Project) -> None:
    project.tests('@pytest.mark.clause("S-01")\ndef test_one(): pass\n\ndef test_two(): pass\n')
    assert project.run("-p", "xdist", "--numprocesses", "2", "-k", "one").ret == pytest.ExitCode.OK
    assert not project.has_written
