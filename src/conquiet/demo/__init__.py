"""The main job of `make run`: it runs the whole pipeline on a seeded sample and checks every figure."""

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
