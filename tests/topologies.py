"""Several servers as one service: a master with replicas and Sentinels, a cluster, a primary with a standby. All are real.

Every one has the same password, as replication and Sentinel need it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
import redis

from conquiet.embedded import PostgresServer, RedisServer, ServerBinary
from conquiet.embedded.ports import free_port

PASSWORD = "pw@with/od:d signs"
ESCAPED = "pw%40with%2Fod%3Ad%20signs"
SERVICE = "orders-db"
_PATIENT_MILLISECONDS = 60_000
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """The first true answer. A server that does not answer yet counts as an untrue one."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if answer := look():
                return answer
        except redis.RedisError:
            pass
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.01)


class Member(RedisServer):
    """A server of a topology, with a plain client beside it."""

    def __init__(self, binary: ServerBinary | None = None, **config: str | int) -> None:
        settings = {"requirepass": PASSWORD, "masterauth": PASSWORD, "repl-diskless-sync-delay": 0, **config}
        super().__init__(
            binary=binary, config={name.replace("_", "-"): value for name, value in settings.items()}
        )

    @cached_property
    def raw(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True, retry=None, socket_timeout=20)

    @property
    def role(self) -> str:
        return str(self.raw.info("replication")["role"])

    @property
    def follows(self) -> bool:
        """It is a replica, and has everything that its master had when it connected."""
        return self.follows_port > 0

    @property
    def follows_port(self) -> int:
        """The port of its master, 0 if it has none or not yet everything that it had."""
        state = self.raw.info("replication")
        return int(state["master_port"]) if state.get("master_link_status") == "up" else 0

    def has_all_of(self, master: Member) -> bool:
        written: int = master.raw.info("replication")["master_repl_offset"]
        return bool(self.raw.info("replication")["slave_repl_offset"] >= written)

    def knows_as_master(self, other: Member) -> bool:
        """In a cluster: whether this node has heard that the other one is a master."""
        nodes: Any = self.raw.execute_command("CLUSTER NODES")
        found = [node for place, node in nodes.items() if place.startswith(f"127.0.0.1:{other.port}")]
        return "master" in found[0]["flags"] and bool(found[0]["slots"])

    def close(self) -> None:
        if "raw" in self.__dict__:
            self.raw.close()
        super().close()


class SentinelServer(Member):
    """Watches a master; with the password of the topology for the master, and none of its own."""

    def __init__(self, master: RedisServer, binary: ServerBinary | None = None, quorum: int = 2) -> None:
        super().__init__(binary=binary)
        self._config["requirepass"] = ""
        self._watched = master.port
        self._quorum = quorum

    def _command(self) -> list[str]:
        path = self.folder / "sentinel.conf"  # which it writes itself, later
        if not path.exists():
            path.write_text(
                f"bind {self.host}\nport {self.port}\ndir {self.folder / 'data'}\n"
                f"sentinel monitor {SERVICE} {self.host} {self._watched} {self._quorum}\n"
                f'sentinel auth-pass {SERVICE} "{PASSWORD}"\n'
                f"sentinel down-after-milliseconds {SERVICE} 300\n"
                f"sentinel failover-timeout {SERVICE} 30000\n"
            )
        return [str(self.binary.program), str(path), "--sentinel"]

    def watch(self, master: RedisServer) -> None:
        """From its next start on, and nothing that it has learnt."""
        self._watched = master.port
        (self.folder / "sentinel.conf").unlink()

    def master_port(self) -> int:
        return int(self.raw.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def calls_it_down(self) -> bool:
        state: Any = self.raw.sentinel_master(SERVICE)
        return "down" in state["flags"]

    def knows(self, replicas: int, sentinels: int) -> bool:
        state: Any = self.raw.sentinel_master(SERVICE)
        return (state["num-slaves"], state["num-other-sentinels"]) == (replicas, sentinels - 1)


class _Servers:
    """Servers that end with the block."""

    _stack: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Replicated(_Servers):
    """A master, its replicas and three Sentinels: `url` leads to whichever is the master."""

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        replicas: int = 1,
        link: Callable[[int], int] = lambda port: port,
    ) -> None:
        """`link` is given the master's port and returns the one that replicas connect to."""
        self._stack = ExitStack()
        with ExitStack() as starting:
            self.master = starting.enter_context(Member(binary))
            self._linked = link(self.master.port)
            self.replicas = [
                starting.enter_context(Member(binary, replicaof=f"127.0.0.1 {self._linked}"))
                for _ in range(replicas)
            ]
            self.sentinels = [starting.enter_context(SentinelServer(self.master, binary)) for _ in range(3)]
            for replica in self.replicas:
                eventually(partial(lambda one: one.follows, replica), "the replica follows")
            for sentinel in self.sentinels:
                eventually(
                    partial(lambda one: one.knows(replicas, 3), sentinel), "the Sentinels know each other"
                )
            self._stack = starting.pop_all()

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.places)
        return f"redis+sentinel://:{ESCAPED}@{hosts}/{SERVICE}/0"

    def hurry(self) -> None:
        """Sentinels look every second, and not every ten; a server that cannot set that keeps its pace."""
        for sentinel in self.sentinels:
            try:
                sentinel.raw.execute_command("SENTINEL", "DEBUG", "info-period", 1000, "publish-period", 200)
            except redis.ResponseError as error:
                print(f"{sentinel.describe()}: {error}")

    def promoted(self) -> Member:
        """The new master, when every Sentinel names it, none calls it down, and it is one.

        From then on Sentinels are patient: a busy machine alone does not make them call it down.
        """
        port = eventually(lambda: self._named_by_all(self.master.port), "another master is named")
        for sentinel in self.sentinels:
            sentinel.raw.execute_command(
                "SENTINEL", "SET", SERVICE, "down-after-milliseconds", _PATIENT_MILLISECONDS
            )
        # While a Sentinel replaces a master it already names the new one, but with the state of the old one.
        eventually(lambda: not any(one.calls_it_down() for one in self.sentinels), "the master counts as up")
        (new,) = [one for one in self.replicas if one.port == port]
        eventually(lambda: new.role == "master", "it is the master")
        return new

    def demote(self) -> Member:
        """Make the master a replica of its replica, which is returned. Connections to both stay open."""
        return self._switch(lambda new: self.master.raw.execute_command("REPLICAOF", "127.0.0.1", new.port))

    def abandon(self) -> Member:
        """The replica, which is returned, becomes the master that Sentinels name; the old one still is one, too."""
        return self._switch(lambda new: None)

    def _switch(self, tell_the_old_one: Callable[[Member], object]) -> Member:
        (new,) = self.replicas
        for sentinel in self.sentinels:  # they would close the connections to the old master
            sentinel.kill()
        new.raw.execute_command("REPLICAOF", "NO", "ONE")
        tell_the_old_one(new)
        for sentinel in self.sentinels:
            sentinel.watch(new)
            sentinel.start()
        return new

    def _named_by_all(self, old: int) -> int:
        named = {sentinel.master_port() for sentinel in self.sentinels}
        return 0 if len(named) > 1 or old in named else named.pop()


class ClusterOfServers(_Servers):
    """Three masters with a third of the slots each, and a replica of every one if `replicas`."""

    def __init__(self, binary: ServerBinary | None = None, *, replicas: bool = False) -> None:
        self._stack = ExitStack()
        with ExitStack() as starting:
            members = [starting.enter_context(_node(binary)) for _ in range(6 if replicas else 3)]
            self.masters, self.replicas = members[:3], members[3:]
            edges = [0, 5461, 10923, 16384]
            for master, first, after in zip(self.masters, edges, edges[1:], strict=False):
                master.raw.execute_command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            for member in members[1:]:
                members[0].raw.execute_command(
                    *("CLUSTER", "MEET", "127.0.0.1", member.port, member._config["cluster-port"])
                )
            for member in members:
                eventually(
                    partial(lambda one: _known(one) == len(members), member), "the nodes know each other"
                )
            for replica, master in zip(self.replicas, self.masters, strict=False):
                replica.raw.execute_command(
                    "CLUSTER", "REPLICATE", master.raw.execute_command("CLUSTER MYID")
                )
            for member in members:
                eventually(partial(lambda one: _is_ok(one), member), "the cluster is whole")
            for replica in self.replicas:
                eventually(partial(lambda one: one.follows, replica), "the replica follows")
            for member in members:  # a replica that nobody knows as one is not promoted
                eventually(partial(lambda one: _slaves(one) == len(self.replicas), member), "roles are known")
            self._stack = starting.pop_all()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{master.port}" for master in self.masters)
        return f"redis+cluster://:{ESCAPED}@{hosts}"

    def owner(self, key: str) -> tuple[Member, Member | None]:
        """The master that has the key, and its replica."""
        slot = self.masters[0].raw.execute_command("CLUSTER", "KEYSLOT", key)
        number = min(2, int(slot) * 3 // 16384)
        return self.masters[number], self.replicas[number] if self.replicas else None

    def flush(self) -> None:
        for master in self.masters:
            master.raw.flushall()


def _node(binary: ServerBinary | None) -> Member:
    return Member(
        binary,
        cluster_enabled="yes",
        cluster_node_timeout=1000,
        cluster_port=free_port(),
        cluster_replica_validity_factor=0,
        cluster_require_full_coverage="no",
    )


def _known(member: Member) -> int:
    return int(member.raw.execute_command("CLUSTER INFO")["cluster_known_nodes"])


def _is_ok(member: Member) -> bool:
    return bool(member.raw.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _slaves(member: Member) -> int:
    nodes = member.raw.execute_command("CLUSTER NODES")
    return sum("slave" in node["flags"] for node in nodes.values())


class PostgresMember(PostgresServer):
    """A PostgreSQL server of a pair: made new, or as a standby of the other one."""

    def __init__(self, primary: PostgresMember | None = None) -> None:
        super().__init__(settings={"wal_level": "replica", "max_wal_senders": 4, "hot_standby": True})
        self._primary = primary
        if primary is not None:
            self._password = primary._password

    def _prepare(self) -> None:
        if self._primary is None:
            super()._prepare()
            return
        source = self._primary
        program = self.binary.program.parent / "pg_basebackup"
        if program.exists():
            self._run_once(
                [
                    str(program),
                    "-D",
                    str(self._data),
                    "-d",
                    source.dsn,
                    "-X",
                    "stream",
                    "-c",
                    "fast",
                    "--no-sync",
                ]
            )
        else:
            self._copy(source)
        place = f"host={source.host} port={source.port} user=postgres password={source._password}"
        with open(self._data / "postgresql.auto.conf", "a", encoding="utf-8") as file:
            # After a promotion it waits for no standby until it has one, as cluster managers do it.
            file.write(f"primary_conninfo = '{place}'\nsynchronous_standby_names = ''\n")
        (self._data / "standby.signal").touch()
        for path in (self._data, *self._data.rglob("*")):
            self._account.take_over(path)

    def _copy(self, source: PostgresMember) -> None:
        """A copy of the files of a running server, where pg_basebackup is missing."""
        new_names = int(source.version.partition(".")[0]) >= 15
        with psycopg.connect(source.dsn, autocommit=True) as client:
            client.execute(
                "SELECT pg_backup_start('copy', true)"
                if new_names
                else "SELECT pg_start_backup('copy', true, false)"
            )
            shutil.copytree(
                source._data,
                self._data,
                ignore=shutil.ignore_patterns("postmaster.*", "pg_replslot", "pg_dynshmem"),
                dirs_exist_ok=True,
            )
            for name in ("pg_replslot", "pg_dynshmem"):
                (self._data / name).mkdir(exist_ok=True)
            stopped = client.execute(
                "SELECT labelfile FROM pg_backup_stop(false)"
                if new_names
                else "SELECT labelfile FROM pg_stop_backup(false, false)"
            ).fetchone()
        assert stopped is not None
        (self._data / "backup_label").write_text(stopped[0], "utf-8")
        # The log up to the end of the backup is streamed from the primary.

    def become_standby_of(self, primary: PostgresMember) -> None:
        """Start again, on the same port, with a copy of the data of `primary`."""
        self.kill()
        shutil.rmtree(self._data)
        self._primary = primary
        self._prepare()
        self.start()

    def promote(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as client:
            client.execute("SELECT pg_promote(true, 60)")


class PostgresPair(_Servers):
    """A primary and a standby that follows it by streaming replication; `dsn` names both."""

    def __init__(self, *, synchronous: bool) -> None:
        self._synchronous = synchronous
        self._stack = ExitStack()
        with ExitStack() as starting:
            self.primary = starting.enter_context(PostgresMember())
            self.standby = starting.enter_context(PostgresMember(self.primary))
            self._stack = starting.pop_all()
        places = ",".join(f"{one.host}:{one.port}" for one in (self.primary, self.standby))
        self.dsn = f"postgresql://postgres:{self.primary._password}@{places}/postgres"
        self._attach()

    def fail_over(self) -> None:
        """kill -9 of the primary, and its standby takes over."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self) -> None:
        """The server that failed comes back as the standby of the other one."""
        self.standby.become_standby_of(self.primary)
        self._attach()

    def _attach(self) -> None:
        with psycopg.connect(self.primary.dsn, autocommit=True) as client:
            if self._synchronous:
                client.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                client.execute("SELECT pg_reload_conf()")
            wanted = "sync" if self._synchronous else "async"
            eventually(
                lambda: client.execute(
                    "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = %s",
                    (wanted,),
                ).fetchone(),
                f"the standby follows ({wanted})",
            )
