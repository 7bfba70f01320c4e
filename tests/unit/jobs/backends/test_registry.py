"""A store is found by the scheme of its DSN; anyone can register one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.jobs import JobConfigError, StoreCapabilities, open_async_store, open_store
from conquiet.jobs.backends import Backend, register, registry
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.testing import ManualClock


class Shelf(MemoryBackend):
    capabilities = StoreCapabilities(
        "shelf", durable=False, own_clock=False, joins_transactions=False, shared=False
    )


OPENED: list[tuple[str, Clock | None, bool]] = []


def open_shelf(dsn: str, /, *, clock: Clock | None, awaits: bool) -> Backend:
    OPENED.append((dsn, clock, awaits))
    return Shelf(clock or SYSTEM_CLOCK)


@pytest.fixture(autouse=True)
def schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))
    OPENED.clear()


def test_a_registered_scheme_is_opened_by_its_opener() -> None:
    register("shelf", open_shelf, "shelf://name")
    clock = ManualClock()
    with open_store("shelf://left?x=1", clock=clock) as store:
        assert store.capabilities.name == "shelf"
        store.enqueue("orders", {"n": 1}, id="a")
        (job,) = store.claim("orders")
        store.ack(job)
    assert [("shelf://left?x=1", clock, False)] == OPENED


def test_so_it_is_on_asyncio() -> None:
    async def main() -> list[str]:
        async with await open_async_store("shelf://right") as store:
            await store.enqueue("orders", {"n": 1}, id="a")
            return [job.id for job in await store.claim("orders")]

    register("shelf", open_shelf, "shelf://name")
    assert asyncio.run(main()) == ["a"]
    assert OPENED == [("shelf://right", None, True)]


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    register("shelf", open_shelf, "shelf://name")
    with pytest.raises(JobConfigError) as refused:
        open_store("shelves://left")
    for form in (
        "shelf://name",
        "sqlite:///jobs.db",
        "postgresql://user:password@host/database",
        "memory://",
    ):
        assert str(refused.value).count(form) == 1


@pytest.mark.parametrize("dsn", ["memory://", "sqlite:///jobs.db"])
def test_stores_without_a_server_need_no_client_of_one(dsn: str, tmp_path: object) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        f"from conquiet.jobs import open_store; open_store({dsn!r}).enqueue('q', {{}})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=str(tmp_path), check=True)


def test_without_psycopg_the_postgresql_store_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from conquiet.errors import MissingDependencyError\n"
        "from conquiet.jobs import open_store\n"
        "try: open_store('postgresql://app@localhost/jobs')\n"
        "except MissingDependencyError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == 'psycopg is not installed: pip install "conquiet[postgres]"\n'
