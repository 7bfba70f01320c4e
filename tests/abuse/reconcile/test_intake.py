"""The corpus against the HTTP intake: as body, field, header and path; over ASGI, and over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.local import PriorityDelayQueue
from conquiet.reconcile import DEFAULT_RULES, IntakeRules, create_app, open_database
from conquiet.reconcile.models import AffiliateReport
from tests.abuse.corpus import corpus, deep, huge
from tests.abuse.database import tables

PROGRAM = Path(__file__).parents[2] / "integration" / "reconcile" / "serving.py"
NAMES = ("affiliate_id", "platform", "post_id")
CLAIMS = ("claimed_views", "claimed_clicks", "claimed_conversions")
GOOD = {"affiliate_id": "ann", "platform": "sim", "post_id": "p1", **dict.fromkeys(CLAIMS, 3)}
UNLIMITED = replace(DEFAULT_RULES, intake=IntakeRules(per_minute=1e6, burst=1_000_000))

# What is refused before the database is asked is the same on all of them.
ONE_DATABASE = pytest.mark.parametrize("report_dsn", ["sqlite"], indirect=True)


@pytest.fixture
def sessions(report_dsn: str) -> Iterator[sessionmaker[Session]]:
    opened = open_database(report_dsn)
    yield opened
    opened.kw["bind"].dispose()


def asked(sessions: sessionmaker[Session], *requests: dict[str, Any]) -> list[httpx.Response]:
    """The answers to POSTs of these inputs, with a good one before and one after, both of which are accepted."""

    async def ask() -> list[httpx.Response]:
        app = create_app(sessions, PriorityDelayQueue(), rules=UNLIMITED)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
            first = await client.post("/reports", json=GOOD)
            answers = [await client.post("/reports", **request) for request in requests]
            last = await client.post("/reports", json=GOOD)
            assert (first.status_code, last.status_code) == (202, 202)
            assert (await client.get("/health")).status_code == 200
            return answers

    return asyncio.run(ask())


def refused(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert answer.status_code in (400, 413, 422), (answer.status_code, error)
    assert 5 < len(error["message"]) < 400
    assert error["message"].isprintable()
    assert answer.headers["Content-Type"] == "application/json"


def stored(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(AffiliateReport)) or 0


@ONE_DATABASE
def test_every_body_is_refused_with_the_reason(sessions: sessionmaker[Session], report_dsn: str) -> None:
    before = tables(report_dsn)
    bodies = [one.raw for one in corpus()]
    bodies += [huge(), deep(), deep(5_000), b"[" * 60_000, b'{"a":1,' * 5_000]
    for answer in asked(sessions, *({"content": body} for body in bodies)):
        refused(answer)
    assert stored(sessions) == 2
    assert tables(report_dsn) == before


def test_every_text_is_a_name_or_refused(sessions: sessionmaker[Session], report_dsn: str) -> None:
    before, good, bad = tables(report_dsn), list[dict[str, Any]](), list[dict[str, Any]]()
    for number, one in enumerate(corpus()):
        # JSON with a lone surrogate is already refused as JSON.
        report = json.dumps({**GOOD, **dict.fromkeys(NAMES, one.text)}).encode()
        taken = one.is_name and bool(one.text.strip())
        (good if taken else bad).append({"content": report})
        field = (one.text, *CLAIMS, "submitted_at")[number % 5]
        bad.append({"content": json.dumps({**GOOD, field: one.text}).encode()})
    answers = asked(sessions, *good)
    assert [answer.status_code for answer in answers] == [202] * len(good)
    with sessions() as session:
        kept = list(session.scalars(select(AffiliateReport).order_by(AffiliateReport.id)))
    names = [json.loads(request["content"])["post_id"] for request in good]
    assert [(report.affiliate_id, report.platform, report.post_id) for report in kept[1:-1]] == [
        (normalize("NFC", name.strip()), name.strip(), name.strip()) for name in names
    ]
    for answer in asked(sessions, *bad):
        refused(answer)
    assert stored(sessions) == len(good) + 4
    assert tables(report_dsn) == before


@ONE_DATABASE
def test_every_number_that_is_no_claim_is_refused(sessions: sessionmaker[Session]) -> None:
    values = [
        "NaN",
        "Infinity",
        "1e400",
        "-1",
        "1.5",
        "9" * 30,
        "9" * 4_300,
        "true",
        "null",
        "[]",
        "{}",
        '"1"',
        "-0.0",
    ]
    bodies = []
    for field in CLAIMS:
        others = json.dumps({name: value for name, value in GOOD.items() if name != field})[1:]
        bodies += [{"content": f'{{"{field}":{value},{others}'} for value in values]
    for answer in asked(sessions, *bodies):
        refused(answer)
    assert stored(sessions) == 2


def test_every_text_as_a_header_is_taken_or_refused_and_never_splits_the_answer(
    sessions: sessionmaker[Session],
) -> None:
    names = (b"X-Correlation-ID", b"Idempotency-Key")
    requests = [
        {"json": GOOD, "headers": [(names[number % 2], one.raw[:255])]} for number, one in enumerate(corpus())
    ]
    answers = asked(sessions, *requests)
    for answer in answers:
        assert answer.status_code in (200, 202, 409, 422), answer.text
        assert "set-cookie" not in answer.headers
        assert set(answer.headers) <= {"content-type", "content-length", "location", "retry-after"}


@ONE_DATABASE
def test_every_path_is_not_found_or_not_allowed(sessions: sessionmaker[Session]) -> None:
    async def ask() -> set[int]:
        transport = httpx.ASGITransport(app=create_app(sessions, PriorityDelayQueue()))
        async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
            found = set()
            for one in corpus():
                path = "".join(f"%{byte:02x}" for byte in one.raw[:500])
                if path:
                    found.add((await client.get(f"/reports/{path}")).status_code)
            for number in ("0", "-1", "9" * 19, "9" * 30, "9" * 4_000, "9" * 5_000):
                found.add((await client.get(f"/reports/{number}")).status_code)
            return found

    assert asyncio.run(ask()) <= {404, 405}


def test_a_real_server_survives_every_body(folder: Path) -> None:
    dsn = f"sqlite:///{folder}/reports.db"
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), dsn], stdout=subprocess.PIPE, text=True, cwd=folder
    )
    with ExitStack() as stack, program as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            stack.callback(connection.close)
            good = json.dumps(GOOD).encode()

            def post(body: bytes) -> int:
                connection.request("POST", "/reports", body)
                answer = connection.getresponse()
                answer.read()
                return answer.status

            assert post(good) == 202
            assert {post(one.raw) for one in corpus()[::8]} == {400, 413, 422}
            assert post(deep(5_000)) == 400
            assert post(good) == 202
            connection.close()
            # Larger than a report may be: the server answers without reading it all, and goes on.
            try:
                assert post(huge()) == 413
            except OSError:  # it closed the connection before everything was sent
                pass
            connection.close()
            assert post(good) == 202
        finally:
            server.terminate()
            server.wait(30)
