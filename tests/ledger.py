"""The clause ledger: which test proves which clause of conformance/clauses.toml, and with what result.

A pytest plugin. Tests carry `@pytest.mark.clause("S-06", …)`. A clause *passes* when it has tests and all of
them pass; it *fails* when one fails; otherwise it is *open*: it has no test, or a test was skipped or expected to
fail, which proves nothing. A clause whose words name other means than the code uses is *met otherwise* when its tests
pass, and shown with the decision that says why (`met_otherwise` in the file). A full run writes build/conformance.json
and docs/conformance.md, and fails when a clause of a delivered group is not met. A run of a part of the suite says
nothing about clauses.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CLAUSES = "conformance/clauses.toml"
REPORT = "docs/conformance.md"
RESULTS = "build/conformance.json"
DECISIONS = "docs/decisions"
PROPERTY = "clause"  # in a test report: a clause that the test proves
MET = ("pass", "met otherwise")


@dataclass(frozen=True)
class Catalogue:
    """The clauses of the file: id to text, in order; the groups that must be complete; clauses met by other means."""

    groups: dict[str, dict[str, str]]
    delivered: list[str]
    otherwise: dict[str, str]  # clause -> the decision that replaces the means it names

    @classmethod
    def read(cls, root: Path) -> Catalogue:
        data = tomllib.loads((root / CLAUSES).read_text(encoding="utf-8"))
        delivered, otherwise = data.pop("delivered", []), data.pop("met_otherwise", {})
        for group in delivered:
            if group not in data:
                raise pytest.UsageError(
                    f"{CLAUSES}: delivered names the group {group!r}, which it does not have"
                )
        for group, clauses in data.items():
            for clause in clauses:
                if not clause.startswith(f"{group}-"):
                    raise pytest.UsageError(f"{CLAUSES}: {clause} is in the group {group}")
        catalogue = cls(data, delivered, otherwise)
        for clause, decision in otherwise.items():
            if clause not in catalogue.clauses:
                raise pytest.UsageError(f"{CLAUSES}: met_otherwise names {clause}, which it does not have")
            if not (root / DECISIONS / f"{decision}.md").is_file():
                raise pytest.UsageError(
                    f"{CLAUSES}: {clause} is met otherwise by {decision!r}, which is not in {DECISIONS}"
                )
        return catalogue

    @property
    def clauses(self) -> dict[str, str]:
        return {clause: text for group in self.groups.values() for clause, text in group.items()}

    @property
    def demanded(self) -> list[str]:
        return [clause for group in self.delivered for clause in self.groups[group]]


@dataclass(eq=False)
class Ledger:
    """The entries of one run."""

    config: pytest.Config
    catalogue: Catalogue
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # clause -> node ids
    outcomes: dict[str, str] = field(default_factory=dict)  # node id -> passed, failed or unproven
    partial: bool = False

    # Hooks. Tests may run in worker processes of pytest-xdist: what is known about a test travels with its reports,
    # and only the main process, which gets all of them, judges.

    @pytest.hookimpl(tryfirst=True)  # before -k and -m deselect tests, so that every id is checked
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        unknown = []
        for item in items:
            for clause in clauses_of(item):
                if clause not in self.catalogue.clauses:
                    unknown.append(f"{item.nodeid}: {clause!r}")
                item.user_properties.append((PROPERTY, clause))
        if unknown:
            raise pytest.UsageError(f"clause ids that are not in {CLAUSES}: " + "; ".join(unknown))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.partial = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A file that cannot be imported, or is skipped as a whole, hides an unknown number of tests.
        self.partial = self.partial or not report.passed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        for name, clause in report.user_properties:
            if name == PROPERTY:
                self.tests[str(clause)].add(test)
        if report.failed:
            self.outcomes[test] = "failed"
        elif report.skipped or hasattr(report, "wasxfail"):
            self.outcomes.setdefault(test, "unproven")
        elif report.when == "teardown":
            self.outcomes.setdefault(test, "passed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.is_full_run(session):
            return
        root = self.config.rootpath
        write_if_changed(root / RESULTS, json.dumps(self.results(), indent=1) + "\n")
        write_if_changed(root / REPORT, self.report())
        if self.unproven() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.is_full_run(terminalreporter._session):
            if self.config.option.conformance:
                terminalreporter.section("clauses")
                terminalreporter.line("not a full run: no verdict on the clauses")
            return
        verdicts = Counter(entry["verdict"] for entry in self.results().values())
        terminalreporter.section("clauses")
        if self.config.option.conformance:
            for clause, entry in self.results().items():
                terminalreporter.line(f"{clause}  {entry['verdict']:4}  {self.catalogue.clauses[clause]}")
                if "decision" in entry:
                    terminalreporter.line(f"            {DECISIONS}/{entry['decision']}.md")
                for test, cases in Counter(map(without_parameters, entry["tests"])).items():
                    terminalreporter.line(f"            {test}" + (f" ({cases} cases)" if cases > 1 else ""))
        delivered = ", ".join(self.catalogue.delivered) or "none"
        terminalreporter.line(
            f"{verdicts['pass']} pass, {verdicts['met otherwise']} met otherwise, {verdicts['fail']} fail, "
            f"{verdicts['open']} open; "
            f"delivered groups: {delivered}; written: {REPORT}, {RESULTS}"
        )
        for clause in self.unproven():
            why = "no passing test" if self.tests.get(clause) else "no test"
            terminalreporter.line(f"{clause} belongs to a delivered group and has {why}", red=True)

    # Results

    def is_full_run(self, session: pytest.Session) -> bool:
        if hasattr(self.config, "workerinput"):
            return False  # a worker process of pytest-xdist sees only a part
        options = (
            "collectonly",
            "lf",
            "stepwise",
            "ignore",
            "ignore_glob",
            "keyword",
            "markexpr",
            "deselect",
        )
        chosen = self.config.args_source is pytest.Config.ArgsSource.ARGS or any(
            self.config.getoption(name, None) for name in options
        )
        ended = session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        # After -x some tests have no outcome. (With pytest-xdist the items are in other processes.)
        items = getattr(session, "items", ())
        finished = ended and not session.shouldstop and all(item.nodeid in self.outcomes for item in items)
        return finished and not (chosen or self.partial)

    def verdict(self, clause: str) -> str:
        outcomes = {self.outcomes[test] for test in self.tests.get(clause, ())}
        if "failed" in outcomes:
            return "fail"
        if outcomes != {"passed"}:
            return "open"
        return "met otherwise" if clause in self.catalogue.otherwise else "pass"

    def results(self) -> dict[str, dict[str, str | list[str]]]:
        results: dict[str, dict[str, str | list[str]]] = {}
        for clause in self.catalogue.clauses:
            results[clause] = {
                "tests": sorted(self.tests.get(clause, ())),
                "verdict": self.verdict(clause),
            }
            if clause in self.catalogue.otherwise:
                results[clause]["decision"] = self.catalogue.otherwise[clause]
        return results

    def unproven(self) -> list[str]:
        return [clause for clause in self.catalogue.demanded if self.verdict(clause) not in MET]

    def report(self) -> str:
        """The page for readers. Parameters are left out: they depend on the servers of the machine."""
        lines = [
            "# Conformance",
            "",
            f"What the system must do, clause by clause (`{CLAUSES}`), and which tests prove it. Written by every full",
            "test run, by `make conformance` too; do not edit. *open* means that no test proves the clause yet; *met",
            "otherwise* that its tests pass, but the code uses other means than the clause names, for the reasons in the",
            "decision.",
            "",
            "| clause | it says | tests | verdict |",
            "| --- | --- | --- | --- |",
        ]
        for clause, text in self.catalogue.clauses.items():
            tests = sorted(set(map(without_parameters, self.tests.get(clause, ()))))
            names = "<br>".join(f"`{test}`" for test in tests)
            verdict = self.verdict(clause)
            if decision := self.catalogue.otherwise.get(clause):
                verdict += f" ([{decision[:4]}](decisions/{decision}.md))"
            lines.append(f"| {clause} | {cell(text)} | {names} | {verdict} |")
        return "\n".join(lines) + "\n"


def clauses_of(item: pytest.Item) -> Iterable[str]:
    """The clause ids of a test, without duplicates. A marker without ids is a mistake."""
    ids: dict[str, None] = {}
    for marker in item.iter_markers("clause"):
        if not marker.args or marker.kwargs or not all(isinstance(clause, str) for clause in marker.args):
            raise pytest.UsageError(f'{item.nodeid}: the marker takes clause ids, as in clause("S-06")')
        ids.update(dict.fromkeys(marker.args))
    return ids


def without_parameters(nodeid: str) -> str:
    return nodeid.split("[")[0]


def cell(text: str) -> str:
    """Text for a table cell, with bars and angle brackets escaped."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--conformance", action="store_true", help="print every clause with its tests and its verdict"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"clause(*ids): the clauses of {CLAUSES} that this test proves")
    path = config.rootpath / CLAUSES
    if not path.exists():
        raise pytest.UsageError(f"{CLAUSES} is missing; the clause ledger needs it")
    config.pluginmanager.register(Ledger(config, Catalogue.read(config.rootpath)), "ledger")
