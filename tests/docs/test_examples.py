"""The examples run unchanged in an empty folder, and print what their docstrings say."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WANTED = {
    "asyncio_worker",
    "custom_store",
    "exactly_once_effect",
    "redis_to_postgres",
    "spark_streaming",
    "starlette_intake",
    "task_on_spark",
    "transactional_outbox",
}


def promised(path: Path) -> list[str]:
    """The lines after "Prints:" in the docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring is not None
    _, found, text = docstring.partition("\nPrints:\n")
    assert found
    return textwrap.dedent(text.strip("\n")).splitlines()


def test_the_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} == WANTED


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == promised(path), done.stderr
