"""A real private Redis or Valkey: every binary on this machine runs the same tests."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import redis

from conquiet.embedded import RedisServer, ServerBinary, available_redis_binaries, server
from conquiet.errors import ServerError


@pytest.fixture(params=available_redis_binaries(), ids=lambda binary: f"{binary.flavour}-{binary.version}")
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    assert isinstance(request.param, ServerBinary)
    return request.param


def client(private: RedisServer, **options: object) -> redis.Redis:
    return redis.Redis.from_url(private.url, decode_responses=True, **options)


def test_it_runs_alone_on_loopback_and_leaves_nothing(binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(binary=binary, base_folder=tmp_path) as private, client(private) as c:
        info = c.info("server")
        assert info["process_id"] == private.pid
        assert info.get("valkey_version", info["redis_version"]) == private.version
        assert c.config_get("bind") == {"bind": "127.0.0.1"}
        assert re.fullmatch(rf"redis://:[\w-]{{24}}@127\.0\.0\.1:{private.port}/0", private.url)
        assert private.describe() == (
            f"{binary.flavour} {binary.version} from {binary.origin}, port {private.port}"
        )
        assert private.folder.stat().st_mode & 0o777 == 0o700
        pid = private.pid
    assert not private.running
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    private.close()  # a second close does no harm


def test_what_was_fsynced_survives_kill_9(binary: ServerBinary) -> None:
    with RedisServer(binary=binary, appendonly=True, appendfsync="always") as private:
        port, first_pid = private.port, private.pid
        with client(private) as c:
            for number in range(100):
                c.rpush("kept", number)
        private.kill()
        assert not private.running
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        private.restart()
        assert (private.port, private.pid != first_pid) == (port, True)
        with client(private) as c:
            assert c.lrange("kept", 0, -1) == [str(number) for number in range(100)]
            assert c.config_get("appendfsync") == {"appendfsync": "always"}


def test_without_append_only_file_a_restart_keeps_and_a_kill_loses(binary: ServerBinary) -> None:
    with RedisServer(binary=binary) as private:
        with client(private) as c:
            c.set("kept", "yes")
        private.restart()
        with client(private) as c:
            assert c.get("kept") == "yes"
            c.set("lost", "yes")
        private.kill()
        private.start()
        with client(private) as c:
            assert (c.get("kept"), c.get("lost")) == ("yes", None)


def test_paused_it_answers_nothing_and_resumed_everything(binary: ServerBinary) -> None:
    with RedisServer(binary=binary) as private, client(private, socket_timeout=0.2, retry=None) as c:
        c.set("before", "1")
        private.pause()
        with pytest.raises(redis.TimeoutError):
            c.get("before")
        private.resume()
        assert c.get("before") == "1"
        private.pause()
        private.restart()  # also while paused
        assert c.get("before") == "1"


def test_stopped_it_can_be_started_again(binary: ServerBinary) -> None:
    private = RedisServer(binary=binary)
    with pytest.raises(ServerError, match=r"it is not running; call start\(\)"):
        private.port  # noqa: B018
    try:
        port = private.start().start().port
        private.stop()
        assert not private.running
        with pytest.raises(ServerError, match="it is not running"):
            private.pause()
        assert private.start().port == port
    finally:
        private.close()


def test_nobody_gets_in_without_the_password(binary: ServerBinary) -> None:
    """Every user of the machine can reach a port of the loopback interface."""
    with RedisServer(binary=binary) as private, RedisServer(binary=binary) as other:
        assert private.url.partition("@")[0] != other.url.partition("@")[0]
        with (
            redis.Redis(port=private.port, retry=None) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        private.restart()
        with client(private) as c:
            assert c.ping()
    with (
        RedisServer(binary=binary, config={"requirepass": ""}) as open_to_all,
        redis.Redis(port=open_to_all.port) as anyone,
    ):
        assert anyone.ping()
        assert open_to_all.url == f"redis://127.0.0.1:{open_to_all.port}/0"


def test_a_password_reaches_the_server_and_no_text(binary: ServerBinary) -> None:
    password = 'sp ace "quote" back\\slash #% wörd'
    with RedisServer(binary=binary, config={"requirepass": password, "maxmemory": "64mb"}) as private:
        with client(private) as c:
            assert c.config_get("maxmemory") == {"maxmemory": str(64 * 2**20)}
        with (
            pytest.raises(redis.AuthenticationError),
            redis.Redis(port=private.port, password="wrong", retry=None) as stranger,
        ):
            stranger.ping()
        command_line = Path(f"/proc/{private.pid}/cmdline")
        for text in (repr(private), private.describe(), private.log_tail()):
            assert "sp ace" not in text
        if command_line.exists():
            assert b"sp ace" not in command_line.read_bytes()


def test_a_server_with_access_rules_of_its_own_gets_ready(binary: ServerBinary) -> None:
    with (
        RedisServer(binary=binary, config={"user": ["default", "off"]}) as private,
        client(private, retry=None) as c,
        pytest.raises(redis.AuthenticationError),
    ):
        c.ping()


def test_a_refused_setting_is_an_error_that_shows_the_log(binary: ServerBinary, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)ended \(1\).*its log ends:.*no-such-setting"):
        RedisServer(binary=binary, config={"no-such-setting": "1"}, base_folder=tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_ready_in_time_is_an_error(binary: ServerBinary, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"not ready after 0.0001 s"):
        RedisServer(binary=binary, base_folder=tmp_path, ready_timeout=0.0001).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_died_says_so(binary: ServerBinary) -> None:
    with RedisServer(binary=binary) as private:
        with client(private) as c:
            c.shutdown(nosave=True)
        deadline = time.monotonic() + 5
        while private.running and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(ServerError, match=r"(?s)exited with status 0; its log ends:.*exit"):
            private.pid  # noqa: B018
        private.restart()
        assert private.running


def test_a_port_taken_at_the_last_moment_is_left_to_its_holder(
    binary: ServerBinary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(binary=binary) as holder:
        free_port = vars(server)["free_port"]
        offered = iter([holder.port, holder.port])
        monkeypatch.setattr(server, "free_port", lambda: next(offered, None) or free_port())
        with RedisServer(binary=binary) as late, client(late) as c:
            assert late.port != holder.port
            assert c.info("server")["process_id"] == late.pid
        assert holder.running


def test_a_restart_waits_for_its_own_port(binary: ServerBinary) -> None:
    with RedisServer(binary=binary) as private:
        port = private.port
        private.kill()
        with socket.create_server(("127.0.0.1", port)) as squatter:
            timer = threading.Timer(0.3, squatter.close)
            timer.start()
            private.restart()
            timer.join()
        assert private.port == port
        with client(private) as c:
            assert c.ping()


def test_what_a_private_server_decides_itself_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="config may not set bind, port"):
        RedisServer(config={"Port": 6379, "bind": "0.0.0.0"})
    with pytest.raises(ValueError, match="appendfsync is one of always, everysec, no"):
        RedisServer(appendfsync="sometimes")  # type: ignore[arg-type]
