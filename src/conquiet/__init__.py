"""conquiet: at-least-once work for Python, told honestly, from one process to a Spark cluster."""

from conquiet.errors import ConquietError

__all__ = ["ConquietError", "__version__"]

__version__ = "0.1.0.dev0"
