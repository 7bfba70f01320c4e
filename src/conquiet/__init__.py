"""conquiet: at-least-once queues and jobs for Python, from one process to a Spark cluster."""

from typing import TYPE_CHECKING, Any

from conquiet.errors import ConquietError

if TYPE_CHECKING:
    from conquiet.app import Conquiet

__all__ = ["Conquiet", "ConquietError", "__version__"]

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    """Import the app on first use: programs that use only a queue do not pay for it."""
    if name == "Conquiet":
        from conquiet.app import Conquiet

        return Conquiet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
