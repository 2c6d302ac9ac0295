"""Kernels one at a time, beside what other libraries take for the same computation."""

from collage_benchmarks.kernels.case import Case
from collage_benchmarks.kernels.catalogue import CASES, chosen
from collage_benchmarks.kernels.contenders import LIBRARIES, missing, version
from collage_benchmarks.kernels.measure import Column, Row, measure_case
from collage_benchmarks.kernels.verdicts import Limits

__all__ = [
    "CASES",
    "LIBRARIES",
    "Case",
    "Column",
    "Limits",
    "Row",
    "chosen",
    "measure_case",
    "missing",
    "version",
]
