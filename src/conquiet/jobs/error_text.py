"""Error texts in the form that jobs store."""

from __future__ import annotations

from conquiet.errors import redact

__all__ = ["error_text"]

MAX_ERROR = 8_192


def error_text(error: object) -> str:
    """Return the text of `error` in a form that every database accepts: no NUL, no lone surrogates, limited length.

    Passwords are removed.
    """
    try:
        text = str(error)
    except Exception as unshowable:  # noqa: BLE001 - a __str__ that raises must not keep the job from failing
        text = f"(its text cannot be shown: {type(unshowable).__qualname__})"
    # Cut twice: a password that the second cut would split is still complete after the first, so redact() finds it.
    text = redact(text[: MAX_ERROR + 512])[:MAX_ERROR].replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace").decode()
