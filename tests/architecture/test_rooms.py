"""The import contracts of the rooms: the package keeps them, and a violation is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Copy:
    """A copy of the package, to which a test adds forbidden imports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)

    def write(self, module: str, text: str) -> None:
        """Append to a module, or create it together with its parent packages."""
        path = self.folder / "src" / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(self.folder / "src").parents[:-1]:
            (self.folder / "src" / folder / "__init__.py").touch()
        with path.open("a") as file:
            file.write("\n" + text + "\n")

    def lint_imports(self) -> subprocess.CompletedProcess[str]:
        # The copy's src goes first on the path, before the installed checkout.
        code = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command as main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "--no-logo", "--no-cache"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={"PATH": "", "COLUMNS": "200"},
        )


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_the_package_keeps_the_contracts(copy: Copy) -> None:
    result = copy.lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Contracts: 1 kept, 0 broken." in result.stdout


@pytest.mark.parametrize(
    ("module", "statement", "complaint"),
    [
        ("conquiet.flow.effects", "import conquiet.payload", "conquiet.flow.effects -> conquiet.payload"),
        ("conquiet.flow.effects", "import msgspec", "conquiet.flow.effects -> msgspec"),
        ("conquiet.clock", "import conquiet.flow", "conquiet.clock -> conquiet.flow"),
        ("conquiet.errors", "import redis", "conquiet.errors -> redis"),
        # Imports inside a function, too, and rooms that need not exist yet.
        (
            "conquiet.queue.new",
            "def f():\n    import conquiet.jobs.new",
            "conquiet.queue.new -> conquiet.jobs.new",
        ),
        ("conquiet.queue.new", "import psycopg", "conquiet.queue.new -> psycopg"),
        ("conquiet.jobs.new", "import psycopg", "conquiet.jobs.new -> psycopg"),
        ("conquiet.jobs.new", "import conquiet.local.new", "conquiet.jobs.new -> conquiet.local.new"),
        ("conquiet.task.new", "import conquiet.queue.new", "conquiet.task.new -> conquiet.queue.new"),
        ("conquiet.reconcile.new", "import pyspark", "conquiet.reconcile.new -> pyspark"),
        (
            "conquiet.reconcile.new",
            "import conquiet.spark",
            "conquiet.reconcile.new -> conquiet.spark",
        ),
        ("conquiet.queue.new", "import conquiet.testing", "conquiet.queue.new -> conquiet.testing"),
        ("conquiet.jobs.new", "import conquiet.cli.new", "conquiet.jobs.new -> conquiet.cli.new"),
        ("conquiet", "import redis", "conquiet -> redis"),
        ("conquiet.attic.new", "import os", "conquiet.attic.new is in no room: it has no row in the table"),
        # Past a front door, and from a room to a room inside it.
        (
            "conquiet.connectors.new",
            "import conquiet.jobs.store",
            "conquiet.connectors.new -> conquiet.jobs.store",
        ),
        (
            "conquiet.reconcile.new",
            "import conquiet.reconcile.spark",
            "conquiet.reconcile.new -> conquiet.reconcile.spark",
        ),
    ],
)
def test_a_forbidden_import_breaks_them(copy: Copy, module: str, statement: str, complaint: str) -> None:
    imported = statement.split()[-1]
    if imported.endswith(".new"):
        copy.write(imported, "")
    if module == "conquiet":
        module = "conquiet.__init__"
    copy.write(module, statement)
    result = copy.lint_imports()
    assert result.returncode == 1
    assert complaint in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("conquiet.jobs.backends.postgres.backend", "import psycopg, conquiet.payload, conquiet.flow"),
        ("conquiet.queue.new", "import redis, conquiet.clock"),
        ("conquiet.spark.new", "import pyspark, redis, conquiet.queue"),
        ("conquiet.cli.new", "import typer, conquiet.verify"),
    ],
)
def test_what_a_row_allows_is_allowed(copy: Copy, module: str, statement: str) -> None:
    copy.write("conquiet.queue.new", "")
    copy.write(module, statement)
    result = copy.lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("row", "wider", "complaint"),
    [
        ("observe = []", 'observe = ["jobs"]', "rooms: observe may import jobs, but nothing does"),
        (
            'payload = ["msgspec"]',
            'payload = ["msgspec", "rich"]',
            "packages: payload may import rich, but nothing does",
        ),
        ('shared = ["clock"', 'shared = ["embedded", "clock"', "shared: nothing imports embedded"),
    ],
)
def test_a_permission_that_nobody_uses_breaks_them(copy: Copy, row: str, wider: str, complaint: str) -> None:
    table = copy.folder / "pyproject.toml"
    assert row in table.read_text()
    table.write_text(table.read_text().replace(row, wider, 1))
    result = copy.lint_imports()
    assert result.returncode == 1
    assert complaint in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("room", ["queue", "jobs", "local"])
def test_no_chain_of_allowed_imports_joins_the_three_deliveries(room: str) -> None:
    """The contract checks single imports. The rooms must also stay apart over chains of imports."""
    reach, packages = closure(room)
    assert not reach & ({"queue", "jobs", "local", "spark", "testing", "cli", "app"} - {room})
    assert "pyspark" not in packages


def closure(room: str) -> tuple[set[str], set[str]]:
    """Every room and package that a chain of allowed imports can reach."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    reach: set[str] = set()
    waiting = {room, *contract["shared"]}
    while waiting:
        reach |= waiting
        waiting = {name for one in waiting for name in contract["rooms"][one]} - reach
    return reach, {
        name for row, names in contract["packages"].items() if row.split(".")[0] in reach for name in names
    }
