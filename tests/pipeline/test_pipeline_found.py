"""Models that once went wrong, made small. Each answers as ONNX says, on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from collage_benchmarks.fuzz.driver import Driver
from collage_benchmarks.fuzz.opinions import ask
from collage_benchmarks.fuzz.report import RIGHT
from collage_benchmarks.fuzz.sources import Sample
from onnx import numpy_helper

from collage_core.formats import Array

pytestmark = pytest.mark.ci


@dataclass(frozen=True)
class Found:
    """text: the graph as ONNX's parser reads it. inputs and constants: arrays by name."""

    name: str
    text: str
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)

    def sample(self) -> Sample:
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> found {self.text}')
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.constants.items())
        onnx.checker.check_model(model, full_check=True)
        return Sample(self.name, model, dict(self.inputs))


def _row(count: int) -> Array:
    return np.arange(1, count + 1, dtype=np.float32).reshape(1, count)


FOUND = [
    Found(
        "outputs of a Split that nobody reads",
        "(float[1,6] x) => (float[1,2] y) { a, b, c = Split<axis=1>(x) y = Neg(a) }",
        {"x": _row(6)},
    ),
    Found(
        "the values of a TopK that nobody reads",
        "(float[1,6] x) => (int64[1,2] i) { v, i = TopK(x, k) }",
        {"x": _row(6)},
        {"k": np.array([2])},
    ),
    Found(
        "a scale and a zero point that nobody reads",
        "(float[1,6] x) => (uint8[1,6] y) { y, s, z = DynamicQuantizeLinear(x) }",
        {"x": _row(6)},
    ),
    Found(
        "a norm of negative numbers",
        "(float[1,3] x) => (float[1,3] y) { y = LpNormalization<p=1>(x) }",
        {"x": np.array([[1, -2, 3]], np.float32)},
    ),
    Found(
        "a sum over axes that are counted",
        """(float[2,3] x) => (float y) {
            s = Shape(x) r = Size(s) a = Range(zero, r, one) y = ReduceSum<keepdims=0>(x, a) }""",
        {"x": np.ones((2, 3), np.float32)},
        {"zero": np.array(0), "one": np.array(1)},
    ),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda f: f.name)
def test_passes_and_both_opinions_agree(found: Found) -> None:
    sample = found.sample()
    opinions = ask(sample.model.SerializeToString(), sample.inputs)
    assert (opinions.refusal, opinions.fault, opinions.blame) == (None, None, None)
    assert opinions.normalised is not None
    assert opinions.why_wrong(opinions.normalised) is None


def test_every_backend_answers_rightly(tmp_path: Path) -> None:
    report = Driver(tmp_path / "costs.sqlite").run(f.sample() for f in FOUND)
    assert [o.status for o in report.outcomes] == [RIGHT] * len(FOUND), "\n".join(report.lines())
    assert not [k for k in report.kernels if k.status in ("wrong", "crashed")], "\n".join(report.lines())
