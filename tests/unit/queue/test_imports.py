"""What importing the queue imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOREIGN = {
    "aiosqlite", "django", "fastapi", "flask", "http.server", "pandas", "psycopg", "psycopg2", "py4j", "pyarrow",
    "pyspark", "sqlalchemy", "sqlite3", "starlette", "typer", "uvicorn",
}  # fmt: skip


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.clause("S-30")
def test_the_queue_imports_no_database_driver_no_spark_and_no_web_code() -> None:
    code = (
        "import sys; before = set(sys.modules)  # what measures coverage imports modules of its own\n"
        "import conquiet.queue, conquiet.queue.transactions; print(*set(sys.modules) - before)"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    imported = set(result.stdout.split())
    assert "redis" in imported
    assert imported & FOREIGN == set()


def test_without_redis_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['redis'] = None\nimport conquiet.queue"
    result = run(code)
    assert result.returncode == 1
    assert "MissingDependencyError: conquiet.queue needs the package redis" in result.stderr
    assert 'pip install "conquiet[redis]"' in result.stderr


def test_the_public_names_are_there() -> None:
    import conquiet.queue

    assert [name for name in conquiet.queue.__all__ if not hasattr(conquiet.queue, name)] == []
    assert list(conquiet.queue.__all__) == sorted(conquiet.queue.__all__)
