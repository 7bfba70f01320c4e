"""The main job behind `make run`: a seeded sample, the whole pipeline on it, every figure checked."""

from typing import TYPE_CHECKING

from conquiet.lazy import lazy_names

if TYPE_CHECKING:
    from conquiet.demo.main_job import run_sample
    from conquiet.demo.sample import Sample
    from conquiet.demo.sample_files import MetricsFile, line_of

__all__ = ["MetricsFile", "Sample", "line_of", "run_sample"]

_MODULES = {"main_job": ("run_sample",), "sample": ("Sample",), "sample_files": ("MetricsFile", "line_of")}
# The sample needs no Spark; the main job does.
__getattr__ = lazy_names(__name__, _MODULES)
