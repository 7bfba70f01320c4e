"""The texts of errors, as jobs keep them."""

from __future__ import annotations

from conquiet.errors import redact

__all__ = ["error_text"]

MAX_ERROR = 8_192


def error_text(error: object) -> str:
    """The text of `error` as every database can hold it: no NUL, no lone surrogates, bounded, without passwords."""
    try:
        text = str(error)
    except Exception as unshowable:  # noqa: BLE001 - a __str__ that raises must not keep the job from failing
        text = f"(its text cannot be shown: {type(unshowable).__qualname__})"
    # Cut twice, so that a password which the second cut would halve is still whole, and found, before it.
    text = redact(text[: MAX_ERROR + 512])[:MAX_ERROR].replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()
