"""The built package: one version, and a wheel with everything that the code reads at run time."""

from __future__ import annotations

import email
import email.message
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import conquiet

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built by the installed hatchling. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_the_version_is_the_one_of_the_package(built: Path, metadata: email.message.Message) -> None:
    assert metadata["Version"] == conquiet.__version__
    assert sorted(path.name for path in built.iterdir()) == [
        f"conquiet-{conquiet.__version__}-py3-none-any.whl",
        f"conquiet-{conquiet.__version__}.tar.gz",
    ]


def test_the_version_is_written_in_one_place() -> None:
    places = [ROOT / "pyproject.toml", *SOURCE.rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    places += [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pattern = re.compile(rf"(?<![\w.]){re.escape(conquiet.__version__)}(?![\w.])")
    assert [path for path in places if pattern.search(path.read_text(encoding="utf-8"))] == [
        SOURCE / "conquiet" / "__init__.py"
    ]


def test_the_wheel_holds_every_file_of_both_packages(wheel: zipfile.ZipFile) -> None:
    """Including SQL statements, migrations and `py.typed`."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == source
    assert {"conquiet/py.typed", "pyspark_conquiet/__init__.py"} <= names
    for store in ("postgres", "sqlite"):
        assert f"conquiet/jobs/backends/{store}/statements.sql" in names
        assert any(name.startswith(f"conquiet/jobs/backends/{store}/migrations/") for name in names)


def test_the_sdist_can_be_built_from(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/conquiet/py.typed"} <= names
