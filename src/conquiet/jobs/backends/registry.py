"""The registry of back ends by DSN scheme."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from conquiet.clock import Clock
from conquiet.errors import AccessProblem, JobConfigError
from conquiet.jobs.backends.protocol import Backend
from conquiet.redaction import redact_dsn

__all__ = ["Opener", "backend_at", "names_no_store", "register"]


class Opener(Protocol):
    """Creates the back end for `dsn`. It does not connect; `Backend.open` does."""

    def __call__(self, dsn: str, /, *, clock: Clock | None, awaits: bool) -> Backend:
        """`clock` is the argument of `open_store`. With `awaits`, asyncio drives the flows of the back end, and the
        functions they call may be coroutine functions."""


class _Scheme(NamedTuple):
    opener: Opener
    form: str


_SCHEMES: dict[str, _Scheme] = {}


def register(scheme: str, opener: Opener, form: str) -> None:
    """Register `opener` for DSNs `scheme://…`. It replaces an opener registered earlier for this scheme.

    `form` shows what such a DSN looks like. The error about an unknown DSN lists the forms of all schemes.
    """
    _SCHEMES[scheme] = _Scheme(opener, form)


def backend_at(dsn: str, clock: Clock | None, *, awaits: bool) -> Backend:
    scheme, found, _ = dsn.partition("://")
    if not found or scheme not in _SCHEMES:
        raise names_no_store(dsn)
    return _SCHEMES[scheme].opener(dsn, clock=clock, awaits=awaits)


def names_no_store(dsn: str) -> JobConfigError:
    *forms, last = dict.fromkeys(scheme.form for scheme in _SCHEMES.values())
    return JobConfigError(
        f"{redact_dsn(dsn)!r} names no job store: use {', '.join(forms)}, or {last}",
        problem=AccessProblem.ADDRESS,
    )
