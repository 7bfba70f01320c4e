"""Project files that only a forge or a tool reads agree with the rest of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")


def test_ci_runs_the_script_on_every_python_of_the_classifiers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = set(re.findall(r":: (3\.\d+)", " ".join(project["classifiers"])))
    (matrix,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert classified <= set(re.findall(r"3\.\d+", matrix))
    assert "run: bash .ci/run" in WORKFLOW
    assert f">={min(classified)}" == project["requires-python"]


def test_hooks_are_local_and_are_those_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    assert re.findall(r"repo: (\S+)", HOOKS) == ["local"]
    programs = set(re.findall(r"\.venv/bin/[\w-]+", recipe))
    assert programs
    assert programs == set(re.findall(r"\.venv/bin/[\w-]+", HOOKS))


def test_who_reports_a_vulnerability_is_sent_to_the_page_of_what_is_promised() -> None:
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for template in ("bug_report.md", "feature_request.md"):
        assert (
            (ROOT / ".github" / "ISSUE_TEMPLATE" / template)
            .read_text(encoding="utf-8")
            .startswith("---\nname: ")
        )
