"""The error for a missing optional package names the extra that installs it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from conquiet import extras
from conquiet.errors import MissingDependencyError
from conquiet.extras import needed_by

ROOT = Path(__file__).parents[2]


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError) as raised, needed_by("this test"):
        importlib.import_module("psycopg")
    assert str(raised.value) == 'this test needs the package psycopg: pip install "conquiet[postgres]"'


def test_a_module_of_no_extra_is_a_bug_and_stays_one() -> None:
    with pytest.raises(ModuleNotFoundError) as raised, needed_by("this test"):
        importlib.import_module("no_such_package")
    assert not isinstance(raised.value, MissingDependencyError)


@pytest.mark.parametrize(("package", "extra"), sorted(extras._EXTRAS.items()))
def test_the_extra_brings_the_package(package: str, extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(one.startswith(package) for one in project["optional-dependencies"][extra])
