"""The main job behind `make run`: a seeded sample, the whole pipeline on it, every figure checked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conquiet.demo.main_job import run_sample
    from conquiet.demo.sample import Sample
    from conquiet.demo.sample_files import MetricsFile, line_of

__all__ = ["MetricsFile", "Sample", "line_of", "run_sample"]

_MODULES = {
    "MetricsFile": "sample_files",
    "Sample": "sample",
    "line_of": "sample_files",
    "run_sample": "main_job",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a sample needs no Spark, the main job does."""
    if name in _MODULES:
        return getattr(import_module(f"conquiet.demo.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
