"""The HTTP intake, as an ASGI app.

POST /reports        202 accepted · 200 accepted before, under the same Idempotency-Key · 400 not a JSON object
                     408 the body did not arrive in time · 409 the key was used for another report · 413 too large · 422 a field is wrong, with the reason
                     429 the queue is full or the affiliate too fast · 503 database unavailable (both: Retry-After)
GET /reports/{id}    the report, its attempts and alerts · 404
GET /health          200, or 503 if the database does not answer
GET /metrics         for Prometheus
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import (
    IntakeBusyError,
    KeyReusedError,
    PayloadError,
    ReconcileConfigError,
    ReportRefusedError,
    StoreUnavailableError,
    redact,
)
from conquiet.observe import RECONCILE_METRICS, SafeLogger, exposition
from conquiet.payload import decode
from conquiet.reconcile.alerts import alerts_of
from conquiet.reconcile.intake.desk import IntakeDesk, Limiter
from conquiet.reconcile.intake.share import Waiting, count_waiting
from conquiet.reconcile.intake.submission import checked_name
from conquiet.reconcile.job import JobQueue
from conquiet.reconcile.models import AffiliateReport, ReportAttempt
from conquiet.reconcile.rules import DEFAULT_RULES, MAX_CLAIM, Rules

__all__ = ["create_app"]

_log = SafeLogger("conquiet.reconcile")
_RETRY_STORAGE = 5.0


class _ReportId(IntegerConvertor):
    regex = "[0-9]{1,19}"  # Python refuses to parse thousands of digits; longer ids exist in no database


register_url_convertor("conquiet_id", _ReportId())


def create_app(
    session_factory: Callable[[], Session],
    queue: JobQueue,
    *,
    platforms: Collection[str] | None = None,
    rules: Rules = DEFAULT_RULES,
    clock: Clock = SYSTEM_CLOCK,
    max_body_bytes: int = 64 * 1024,
    body_seconds: float = 30.0,
    lifespan: Any = None,
    limiter: Limiter | None = None,
) -> Starlette:
    """Return the app. A report's body must arrive within `body_seconds`. It has no authentication: put it behind a proxy that has."""
    desk = IntakeDesk(session_factory, queue, platforms=platforms, rules=rules, clock=clock, limiter=limiter)
    intake = _Intake(desk, session_factory, max_body_bytes, body_seconds, clock)
    return Starlette(
        routes=[
            Route("/reports", intake.submit, methods=["POST"]),
            Route("/reports/{report_id:conquiet_id}", intake.show, methods=["GET"]),
            Route("/health", intake.health, methods=["GET"]),
            Route("/metrics", intake.metrics, methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            StoreUnavailableError: intake.storage_error,
            SQLAlchemyError: intake.storage_error,  # from sessions that the caller made
        },
        lifespan=lifespan,
    )


class _Intake:
    def __init__(
        self,
        desk: IntakeDesk,
        session_factory: Callable[[], Session],
        max_body_bytes: int,
        body_seconds: float,
        clock: Clock,
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._session_factory = session_factory
        self._max_body_bytes = max_body_bytes
        self._failures = 0  # of the database, in a row
        self._body_seconds = checked_seconds(
            "body_seconds", body_seconds, above_zero=True, error=ReconcileConfigError
        )

    async def submit(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._body_seconds):
                body = await self._body(request)
        except TimeoutError:
            RECONCILE_METRICS.received("too_slow")
            raise HTTPException(
                408,
                f"the body of a report must arrive within {self._body_seconds:g} s",
                {"Connection": "close"},
            ) from None
        except ClientDisconnect:
            return _left_early(request)
        try:
            payload = decode(body)
            correlation_id = _header(request, "X-Correlation-ID") or uuid.uuid4().hex
            key = _header(request, "Idempotency-Key")
            accepted = await run_in_threadpool(self._desk.submit, payload, correlation_id, key)
        except PayloadError as error:
            return _refused(400, "not_json", str(error))
        except KeyReusedError as error:
            return _refused(409, "key_reused", str(error), field=error.field)
        except ReportRefusedError as error:
            return _refused(422, "invalid_report", str(error), field=error.field)
        except IntakeBusyError as busy:
            status = 503 if busy.code == "shutting_down" else 429
            return _refused(status, busy.code, str(busy), retry_after=busy.retry_after)
        self._database_answered()
        RECONCILE_METRICS.received("accepted" if accepted.is_new else "repeated")
        return JSONResponse(
            {
                "report_id": accepted.report_id,
                "priority": accepted.priority,
                "correlation_id": accepted.correlation_id,
            },
            status_code=202 if accepted.is_new else 200,
            headers={"Location": f"/reports/{accepted.report_id}"},
        )

    async def show(self, request: Request) -> Response:
        report_id = request.path_params["report_id"]
        try:
            found = (
                await run_in_threadpool(self._report, report_id) if report_id <= MAX_CLAIM else None
            )  # larger ids exist in no database
        except ValueError as error:  # SQLite keeps any text as a time
            return _damaged(report_id, error)
        if found is None:
            raise HTTPException(404, f"there is no report {report_id}")
        try:
            return JSONResponse(found)
        except (TypeError, ValueError) as error:  # not a value of JSON: SQLite keeps bytes in any column
            return _damaged(report_id, error)

    async def health(self, request: Request) -> Response:
        waiting = await run_in_threadpool(self._ask_database)
        self._database_answered()
        return JSONResponse(
            {"status": "ok", "queue": self._desk.queue_state(), "database": waiting._asdict()}
        )

    async def metrics(self, request: Request) -> Response:
        metrics = await run_in_threadpool(exposition)
        if metrics is None:
            raise HTTPException(501, 'metrics are not available: pip install "conquiet[prometheus]"')
        return Response(metrics[0], headers={"Content-Type": metrics[1]})

    async def storage_error(self, request: Request, error: Exception) -> Response:
        self._failures += 1
        _log.log(
            logging.ERROR if self._failures == 1 else logging.DEBUG,  # once in each outage
            "the database failed an operation of the intake, which answers 503 until it is back: %s: %s",
            type(error).__name__,
            redact(str(error)),
            extra={
                "event": "storage_unavailable",
                "correlation_id": request.headers.get("X-Correlation-ID"),
            },
        )
        return _refused(503, "storage_unavailable", "try again", retry_after=_RETRY_STORAGE)

    def _database_answered(self) -> None:
        failures, self._failures = self._failures, 0
        if failures:
            _log.warning(
                "the database answers the intake again, after %d requests that it failed",
                failures,
                extra={"event": "storage_returned", "failures": failures},
            )

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise HTTPException(413, f"a report has at most {self._max_body_bytes} bytes")
        return bytes(body)

    def _ask_database(self) -> Waiting:
        with self._session_factory() as session:
            return count_waiting(session.connection(), utc(self._clock.time()))

    def _report(self, report_id: int) -> dict[str, Any] | None:
        with self._session_factory() as session:
            report = session.get(AffiliateReport, report_id)
            if report is None:
                return None
            attempts = session.scalars(
                select(ReportAttempt)
                .where(ReportAttempt.report_id == report_id)
                .order_by(ReportAttempt.attempt)
            )
            return {
                **_shown(report, but=("attempts", "idempotency_key")),
                "attempts": [_shown(attempt, but=("report_id",)) for attempt in attempts],
                "alerts": [_shown(alert, but=("report_id",)) for alert in alerts_of(session, report_id)],
            }


def _shown(row: Any, but: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns of a row, with times as ISO 8601."""
    values = {column.name: getattr(row, column.name) for column in row.__table__.columns}
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in values.items()
        if name not in but
    }


def _header(request: Request, name: str) -> str | None:
    value = request.headers.get(name)
    return None if value is None else checked_name(name, value)


def _left_early(request: Request) -> Response:
    """Nobody reads this response; it is for the server, which expects one."""
    RECONCILE_METRICS.received("left_early")
    _log.info(
        "a client closed the connection before the end of its report; nothing was stored",
        extra={"event": "client_left", "correlation_id": request.headers.get("X-Correlation-ID")},
    )
    return Response(status_code=400)


def _damaged(report_id: int, error: Exception) -> Response:
    message = f"report {report_id} cannot be shown: a value in the database is damaged"
    _log.error(
        "%s: %s", message, redact(str(error)), extra={"event": "report_damaged", "report_id": report_id}
    )
    return JSONResponse({"error": {"code": "damaged_report", "message": message}}, status_code=500)


def _refused(
    status: int,
    code: str,
    message: str,
    *,
    field: str | None = None,
    retry_after: float | None = None,
) -> Response:
    RECONCILE_METRICS.received(code)
    headers = {}
    if retry_after is not None:
        headers["Retry-After"] = str(
            max(1, math.ceil(retry_after))
        )  # whole seconds; 0 would mean immediately
    error = {"code": code, "message": message} | ({"field": field} if field else {})
    return JSONResponse({"error": error}, status_code=status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": {"code": f"http_{error.status_code}", "message": error.detail}},
        status_code=error.status_code,
        headers=error.headers,
    )
