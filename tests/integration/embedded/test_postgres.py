"""A real private PostgreSQL, as root and as another user."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from conquiet.embedded import PostgresServer, ServerBinary, available_postgres_binaries, guardian
from conquiet.errors import ServerError

ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    with PostgresServer() as private:
        yield private


def segment_of(private: PostgresServer) -> str:
    """The id of the System V segment that this server holds."""
    return (private.folder / "data" / "postmaster.pid").read_text().split("\n")[6].split()[1]


def segments() -> set[str]:
    return {row.split()[1] for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.mark.parametrize(
    "binary", available_postgres_binaries(), ids=lambda binary: f"{binary.version}-{binary.origin}"
)
def test_a_committed_row_survives_kill_9(binary: ServerBinary, tmp_path: Path) -> None:
    def processes(private: PostgresServer) -> dict[int, str]:
        return guardian.processes(0, str(private.folder), str(binary.program))

    with PostgresServer(binary=binary, base_folder=tmp_path) as private:
        with psycopg.connect(private.dsn) as c:
            c.execute("CREATE TABLE kept (id int)")
            c.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
        port = private.port
        open_one = psycopg.connect(private.dsn)
        assert open_one.execute("SHOW server_version").fetchone()[0].split()[0] == private.version
        open_one.execute("INSERT INTO kept VALUES (0)")  # never committed
        assert private.pid in processes(private)
        assert open_one.info.backend_pid in processes(private)
        # Named shared memory would outlive the kill, and its name would be lost.
        assert "/dev/shm/" not in Path(f"/proc/{private.pid}/maps").read_text()
        private.kill()
        assert not processes(private)
        open_one.close()
        private.restart()
        assert private.port == port
        with psycopg.connect(private.dsn) as c:
            assert c.execute("SELECT count(*), min(id) FROM kept").fetchone() == (1000, 1)
        segment = segment_of(private)
        assert segment in segments()
        private.kill()
        assert segment in segments()  # what a kill -9 leaves, and `close` has to find
    assert segment not in segments()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ServerError, match="it is not running"):
        private.dsn  # noqa: B018


def test_a_start_waits_for_the_last_process_on_the_old_memory(shared: PostgresServer) -> None:
    segment = int(segment_of(shared))
    shared.kill()
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    timer = threading.Timer(0.5, libc.shmdt, [ctypes.c_void_p(address)])
    timer.start()
    shared.restart()
    timer.join()
    assert "pre-existing shared memory block" in shared.log_tail(1000)
    with psycopg.connect(shared.dsn) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)


def test_a_busy_backend_does_not_outlive_its_killed_server(shared: PostgresServer) -> None:
    """Otherwise it would never notice, keep the shared memory, and so prevent the next start."""
    busy = psycopg.connect(shared.dsn, autocommit=True)
    failures: list[Exception] = []

    def spin() -> None:
        try:
            busy.execute("DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")
        except psycopg.OperationalError as error:
            failures.append(error)

    thread = threading.Thread(target=spin)
    thread.start()
    with psycopg.connect(shared.dsn, autocommit=True) as c:
        state = "SELECT state FROM pg_stat_activity WHERE query LIKE 'DO %%' AND pid = %s"
        deadline = time.monotonic() + 10
        while c.execute(state, [busy.info.backend_pid]).fetchone() != ("active",):
            assert time.monotonic() < deadline
    shared.kill()
    thread.join(10)
    assert len(failures) == 1
    busy.close()
    shared.restart()
    with psycopg.connect(shared.dsn) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)


def test_paused_even_open_connections_stand_still(shared: PostgresServer) -> None:
    with psycopg.connect(shared.dsn, autocommit=True) as c:
        answered = threading.Event()

        def ask() -> None:
            c.execute("SELECT 1")
            answered.set()

        shared.pause()
        thread = threading.Thread(target=ask)
        thread.start()
        assert not answered.wait(0.3)
        shared.resume()
        assert answered.wait(5)
        thread.join()
        shared.pause()
    shared.restart()
    with psycopg.connect(shared.dsn) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)


def test_the_password_is_asked_for_and_shown_nowhere(shared: PostgresServer) -> None:
    password = shared.dsn.split(":")[2].split("@")[0]
    assert len(password) >= 32
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(shared.dsn.replace(password, "wrong"))
    texts = [repr(shared), shared.describe(), shared.log_tail(1000)]
    texts += [path.read_text() for path in shared.folder.iterdir() if path.is_file()]
    assert not [text for text in texts if password in text]


def test_databases_come_and_go(shared: PostgresServer) -> None:
    dsn = shared.create_database('odd "name"/%')
    with psycopg.connect(dsn) as c:
        assert c.info.dbname == 'odd "name"/%'
        c.execute("CREATE TABLE seed (id int)")
    copy = shared.create_database("copy", template='odd "name"/%')
    client = psycopg.connect(copy)
    assert client.execute("SELECT count(*) FROM seed").fetchone() == (0,)
    shared.drop_database("copy")  # the open client does not prevent it
    shared.drop_database("copy")
    client.close()
    shared.drop_database('odd "name"/%')
    with psycopg.connect(shared.dsn) as c:
        assert c.execute("SELECT count(*) FROM pg_database WHERE NOT datistemplate").fetchone() == (1,)


def test_commits_are_durable_unless_told_otherwise(shared: PostgresServer) -> None:
    def settings(private: PostgresServer) -> dict[str, str]:
        names = (
            "fsync",
            "full_page_writes",
            "synchronous_commit",
            "application_name",
            "work_mem",
            "listen_addresses",
        )
        with psycopg.connect(private.dsn) as c:
            return {name: c.execute(f"SHOW {name}").fetchone()[0] for name in names}

    durable = settings(shared)
    assert [durable[name] for name in ("fsync", "full_page_writes", "synchronous_commit")] == ["on"] * 3
    assert durable["listen_addresses"] == "127.0.0.1"
    asked: dict[str, str | int] = {"application_name": r"it's a \ name", "work_mem": "7MB"}
    with PostgresServer(fsync=False, settings=asked) as private:
        quick = settings(private)
        assert [quick[name] for name in ("fsync", "full_page_writes", "synchronous_commit")] == ["off"] * 3
        assert (quick["application_name"], quick["work_mem"]) == (r"it's a \ name", "7MB")


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="settings may not set fsync, port"):
        PostgresServer(settings={"port": 5432, "FSYNC": False})
    with pytest.raises(ValueError, match="is not the name of a PostgreSQL setting"):
        PostgresServer(settings={"work mem": 1})
    with pytest.raises(ValueError, match="work_mem contains a line break"):
        PostgresServer(settings={"work_mem": "1\nfsync=off"})
    with pytest.raises(ServerError, match=r'(?s)ended \(1\).*parameter "no_such_setting"'):
        PostgresServer(settings={"no_such_setting": 1}, base_folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_closed_one_is_used_as_it_is(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    modes = [(path, path.stat().st_mode, path.stat().st_uid) for path in (closed, *closed.parents)]
    with PostgresServer(base_folder=closed) as private, psycopg.connect(private.dsn) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
        assert ("in a user namespace" in private.describe()) == ROOT
    assert [(path, path.stat().st_mode, path.stat().st_uid) for path, _, _ in modes] == modes
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_without_user_namespaces_root_takes_another_account(
    shared: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no unshare
    private = PostgresServer(binary=shared.binary)
    open_to_all = all(path.stat().st_mode & 0o001 for path in private.binary.program.parents)
    if not ROOT:
        with private:
            assert private.folder.stat().st_uid == os.geteuid()
            assert "as user" not in private.describe()
    elif open_to_all:
        with private:
            folder = private.folder
            assert "as user " in private.describe()
            assert folder.stat().st_uid != 0
            private.kill()
            private.restart()
            with psycopg.connect(private.dsn) as c:
                assert c.execute("SELECT 1").fetchone() == (1,)
        assert not folder.exists()
    else:
        with pytest.raises(ServerError, match="refuses to run as root"):
            private.start()


def test_if_no_account_will_do_the_reasons_are_told(
    shared: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no unshare, and no other user can enter tmp_path
    private = PostgresServer(binary=shared.binary, base_folder=tmp_path)
    if ROOT:
        reasons = (
            "refuses to run as root.*there is no program unshare.*user nobody: .*Run this as a normal user"
        )
        with pytest.raises(ServerError, match=reasons):
            private.start()
    else:
        private.start().close()
    assert list(tmp_path.iterdir()) == []
