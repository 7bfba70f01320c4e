"""The metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Exposition", "exposition"]

Exposition = Callable[[], tuple[bytes, str] | None]


def exposition() -> tuple[bytes, str] | None:
    """Return the metrics of this process and their content type; None without prometheus_client."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    except ImportError:
        return None
    return generate_latest(), CONTENT_TYPE_LATEST
