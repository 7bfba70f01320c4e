"""The one JSON rule for payloads, in every queue and store.

A payload is a dict with string keys that contains dicts, lists, strings, numbers, booleans and None, and it comes out
of a queue equal to what went in. What would come out different is refused before anything is sent: NaN and infinities
(JSON has none), bytes, sets, dates, UUIDs, decimals, keys that are not strings, lone surrogates, circular structures,
nesting or size beyond the limits. Integers of any size stay integers. A tuple is accepted and comes back as a list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from conquiet.errors import PayloadError

__all__ = ["DEFAULT_LIMITS", "Payload", "PayloadLimits", "decode", "encode"]

Payload = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """How large (bytes of JSON) and how deep (levels of nesting) a payload may be."""

    max_bytes: int = 8 * 1024 * 1024
    max_depth: int = 100

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_depth"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PayloadError(f"PayloadLimits.{name} must be an int of at least 1, not {value!r}")
        # The codec recurses on the C stack under the interpreter's recursion limit.
        if self.max_depth > 500:
            raise PayloadError(f"PayloadLimits.max_depth must be at most 500, not {self.max_depth}")


DEFAULT_LIMITS: Final = PayloadLimits()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_CODEC_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)


def encode(payload: Payload, limits: PayloadLimits = DEFAULT_LIMITS) -> bytes:
    """`payload` as UTF-8 JSON, or `PayloadError` saying where it breaks the rule."""
    if not isinstance(payload, dict):
        raise PayloadError(f"a payload is a dict with string keys, not {_type(payload)}")
    try:
        data = _encode(payload)
        # The codec is lenient (NaN becomes null, a set becomes a list); a round trip detects that. It costs a
        # microsecond; walking the payload in Python would cost ten.
        faithful = _decode(data) == payload
    except _CODEC_ERRORS as error:
        _refuse_unfit(payload, limits)
        raise PayloadError(f"the payload is not JSON: {error}") from error
    if len(data) > limits.max_bytes:
        raise PayloadError(
            f"the payload is {len(data)} bytes of JSON, over the limit of {limits.max_bytes}: "
            "store the content elsewhere and put a reference into the payload, or raise PayloadLimits.max_bytes"
        )
    # A payload with no more brackets than allowed levels cannot be nested too deep; others are walked.
    if not faithful or data.count(b"{") + data.count(b"[") > limits.max_depth:
        _refuse_unfit(payload, limits)
    return data


def decode(data: bytes | str) -> Payload:
    """The payload in `data`, or `PayloadError` with the reason. No size limit: the data is already in memory."""
    try:
        payload = _decode(data)
    except _CODEC_ERRORS as error:
        raise PayloadError(f"not UTF-8 JSON: {error}") from error
    if type(payload) is not dict:
        raise PayloadError(f"a JSON object was expected, not {_JSON_NAMES[type(payload)]}")
    return payload


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _refuse_unfit(payload: Payload, limits: PayloadLimits) -> None:
    """Raise for the first value that breaks the rule, with its path; return if there is none.

    Iterative, because the payload may be nested too deep for recursion. The message contains no values: they may be
    secrets.
    """
    pending: list[tuple[object, str, int]] = [(payload, "$", 1)]
    while pending:
        value, path, depth = pending.pop()
        if isinstance(value, dict | list | tuple):
            if depth > limits.max_depth:
                raise PayloadError(
                    f"the payload is nested deeper than {limits.max_depth} levels (or contains itself)"
                    f" at {_shown(path)}"
                )
            if isinstance(value, dict):
                for key, item in value.items():
                    if not isinstance(key, str):
                        raise PayloadError(
                            f"the payload has a key at {_shown(path)} that is {_type(key)}, not str"
                        )
                    _refuse_surrogates(key, path, "a key at ")
                    pending.append((item, f"{path}.{key}", depth + 1))
            else:
                pending.extend((item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))
        elif isinstance(value, str):
            _refuse_surrogates(value, path)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise PayloadError(
                    f"the payload has {value!r} at {_shown(path)}, which JSON cannot hold: use None or a string"
                )
        elif not (value is None or isinstance(value, bool | int)):
            raise PayloadError(
                f"the payload has {_type(value)} at {_shown(path)}, which is not JSON:"
                " convert it (to a string, say) first"
            )


def _shown(path: str) -> str:
    """`path`, shortened and printable: a line break in a key must not forge a log line."""
    start = path if len(path) <= 80 else path[:80] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in start)


def _refuse_surrogates(text: str, path: str, what: str = "") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"the payload has a lone surrogate in {what}{_shown(path)}, which UTF-8 cannot hold"
            f" (character {error.start}): decode the source with errors='replace'"
        ) from None
