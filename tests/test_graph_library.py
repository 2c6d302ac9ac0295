"""What plugins of graph libraries share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from collage_core.backend import Bound, plain_variant
from collage_core.errors import BackendError, InputError
from collage_core.formats import Array, channels_last, plain
from collage_core.graph_library import BufferedPeerSession, border_variants
from collage_core.ir import Graph, Subgraph, TensorType, from_model

_IMAGE = (2, 3, 8, 8)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return from_model(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["" : 20]>
            g (float[2,3,8,8] x, int64[2,3,8,8] i, float[2,3,1] m) => (float z, float v) {
              [a] a = Relu(x)
              [p] p = MaxPool <kernel_shape = [1, 1]> (a)
              [b] b = Gelu(p)
              [c] c = Cast <to = 1> (i)
              [d] d = Add(b, c)
              [z] z = Neg(d)
              [u] u = Tanh(m)
              [v] v = GlobalMaxPool(u)
            }
        """)
    )


@pytest.mark.parametrize("names", ["p", "a", "b", "ap", "apbcd"])
def test_channels_last_is_offered_where_images_are(graph: Graph, names: str) -> None:
    group = Subgraph(graph, [graph.node_named(n).id for n in names])
    first, second = border_variants(group)
    assert first == plain_variant(group)
    image = channels_last("float32", _IMAGE)
    inputs = dict(zip(group.inputs, second.inputs, strict=True))
    assert inputs.get("i") in (None, plain("int64", _IMAGE))
    assert {f for f in (*second.inputs, *second.outputs) if f.dtype == "float32"} == {image}


@pytest.mark.parametrize("names", ["c", "z", "u", "v"])
def test_only_plain_where_none_are_or_nothing_changes(graph: Graph, names: str) -> None:
    group = Subgraph(graph, [graph.node_named(n).id for n in names])
    assert border_variants(group) == [plain_variant(group)]


class _Doubling(BufferedPeerSession):
    def __init__(self, status: object = None) -> None:
        type = TensorType("float32", (3, 5))
        self.status = status
        super().__init__({"x": type}, {"y": type}, self._bind)

    def _bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Bound:
        (x,), (y,) = inputs.values(), outputs.values()
        self.addresses = x.ctypes.data, y.ctypes.data

        def call() -> object:
            np.multiply(x, 2, out=y)
            return self.status

        return call


def test_a_session_runs_on_its_buffers() -> None:
    session, x = _Doubling(), np.arange(15, dtype=np.float32).reshape(3, 5)
    assert [a % 64 for a in session.addresses] == [0, 0]
    session.run()
    assert not session.outputs()["y"].any()
    session.set_inputs({"x": x})
    session.run()
    kept = session.outputs()["y"]
    session.set_inputs({"x": -x})
    session.run()
    np.testing.assert_array_equal(kept, 2 * x)
    np.testing.assert_array_equal(session.outputs()["y"], -2 * x)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"must be \['x'\], not \[\]"),
        ({"x": np.zeros((3, 4), np.float32)}, r"float32\[3, 5\], not float32\[3, 4\]"),
        ({"x": np.zeros((3, 5))}, "not float64"),
    ],
)
def test_a_session_names_wrong_inputs(inputs: dict[str, Array], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _Doubling().set_inputs(inputs)


def test_a_session_that_fails_says_so() -> None:
    with pytest.raises(BackendError, match="status 7"):
        _Doubling(7).run()
