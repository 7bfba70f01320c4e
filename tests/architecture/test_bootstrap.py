"""tools/bootstrap.py, as far as it runs without a network. Every run of this suite shows that it installs."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import bootstrap

ROOT = Path(__file__).parents[2]


class Checkout:
    """A copy of the files that the script needs, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        for name in ("tools", "requirements"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def bootstrap(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "tools/bootstrap.py", *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )

    def stamps(self) -> set[str]:
        return {path.name.split("-")[0] for path in self.venv.glob(".*-*")}

    def pretend_complete(self) -> None:
        """Create what a complete run leaves: interpreter, mark and stamps, but no packages."""
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").symlink_to(sys.executable)
        (self.venv / "pyvenv.cfg").touch()
        (self.venv / ".made").write_text(bootstrap.describe(bootstrap.base_interpreter()))
        for name, source in [("core", "requirements/core.txt"), ("project", "pyproject.toml")]:
            Path(
                bootstrap.Environment(".venv", [], True)
                .stamp(name, source)
                .replace(str(ROOT), str(self.folder))
            ).touch()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_old_python_can_read_it() -> None:
    ast.parse((ROOT / "tools" / "bootstrap.py").read_text(), feature_version=(3, 6))


def test_a_complete_environment_is_reused_without_a_word(checkout: Checkout) -> None:
    checkout.pretend_complete()
    result = checkout.bootstrap("core")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_half_made_environment_is_made_anew_and_a_missing_network_is_told_in_a_line(
    checkout: Checkout,
) -> None:
    checkout.pretend_complete()
    (checkout.venv / ".made").unlink()
    result = checkout.bootstrap("core", PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "conquiet: .venv is incomplete or of another Python; creating it again"
    assert lines[-1].startswith(
        "conquiet: could not install core packages: ERROR: No matching distribution found"
    )
    assert (checkout.venv / ".made").exists()  # the environment itself exists and is not made again
    assert checkout.stamps() == set()


def test_a_changed_lock_is_noticed(checkout: Checkout) -> None:
    checkout.pretend_complete()
    with (checkout.folder / "requirements" / "core.txt").open("a") as lock:
        lock.write("# changed\n")
    result = checkout.bootstrap("core", PIP_NO_INDEX="1", CONQUIET_INSTALLER="pip")
    assert "core packages, with pip ... failed" in result.stderr


@pytest.mark.parametrize("what", ["a folder", "a file"])
def test_what_is_no_environment_is_left_alone(checkout: Checkout, what: str) -> None:
    if what == "a folder":
        checkout.venv.mkdir()
        (checkout.venv / "thesis.txt").touch()
    else:
        checkout.venv.touch()
    result = checkout.bootstrap("core")
    assert result.returncode == 1
    assert (
        result.stderr == "conquiet: .venv exists but is not a virtual environment; run: mv .venv .venv.old\n"
    )
    assert checkout.venv.exists()


def test_an_old_python_is_refused_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(version_info=(3, 8, 18), version="3.8.18 (main)", executable="/usr/bin/python3")
    monkeypatch.setattr(bootstrap, "sys", old)
    monkeypatch.setattr(
        bootstrap, "run_quietly", lambda command: "3.12" if command[0] == "python3.12" else ""
    )
    with pytest.raises(
        bootstrap.Stop, match=r"/usr/bin/python3 is 3\.8\.18; run: PYTHON=python3\.12 make run$"
    ):
        bootstrap.check_interpreter("make run")
    monkeypatch.setattr(bootstrap, "run_quietly", lambda command: "")
    with pytest.raises(bootstrap.Stop, match=r"; run: .*PYTHON=\S.* make run$"):
        bootstrap.check_interpreter("make run")


def test_a_python_without_ensurepip_is_refused_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(bootstrap.Stop, match=r"has no ensurepip module, so it cannot create \.venv; run"):
        bootstrap.check_interpreter("make test")


def test_settings_that_send_packages_elsewhere_are_dropped_and_those_of_indexes_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "UV_SYSTEM_PYTHON"):
        monkeypatch.setenv(name, "x")
    for name in ("PIP_INDEX_URL", "PIP_CERT", "UV_DEFAULT_INDEX", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "kept")
    environment = bootstrap.clean_environment()
    assert {"PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "UV_SYSTEM_PYTHON"}.isdisjoint(environment)
    assert {
        environment[name] for name in ("PIP_INDEX_URL", "PIP_CERT", "UV_DEFAULT_INDEX", "HTTPS_PROXY")
    } == {"kept"}
