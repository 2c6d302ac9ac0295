"""Random models of ONNX's operators, by hypothesis: needs the extra `fuzz` of this package.

`OPERATORS` is what there is; `single("Conv", 13)` makes models of one operator; `graphs(17)` whole ones.
"""

from collage_benchmarks.generator.builder import Builder, Case, Value
from collage_benchmarks.generator.catalogue import OPERATORS, operators, opsets, single
from collage_benchmarks.generator.examples import example
from collage_benchmarks.generator.family import NEWEST, OLDEST, Operator
from collage_benchmarks.generator.graphs import graphs

__all__ = [
    "NEWEST",
    "OLDEST",
    "OPERATORS",
    "Builder",
    "Case",
    "Operator",
    "Value",
    "example",
    "graphs",
    "operators",
    "opsets",
    "single",
]
