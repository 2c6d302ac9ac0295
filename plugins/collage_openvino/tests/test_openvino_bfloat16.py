"""Groups computed in bfloat16, and conversions to and from it."""

from __future__ import annotations

import numpy as np
import pytest
from collage_openvino import backend
from collage_openvino.backend import OpenvinoBackend
from collage_run.restoring import restore
from openvino_groups import NOTHING, TARGET, f

from collage_core.candidates import Taken, generate_candidates
from collage_core.devices import IMMEDIATE
from collage_core.errors import Refusal
from collage_core.formats import Format, empty, plain
from collage_core.ir import TensorType
from collage_core.target import Processor, Target, processor
from collage_core.testing import make_group, node

_ROUNDING = Target("cpu", 2, ("bfloat16",))
_UNITS = pytest.mark.skipif(
    not processor().multiplies_bfloat16, reason="the processor has no instructions for it"
)


@pytest.mark.parametrize(
    ("target", "instructions", "dtypes"),
    [
        (_ROUNDING, ("avx512_bf16",), {"float32", "bfloat16"}),
        (_ROUNDING, ("avx512f",), {"float32"}),
        (TARGET, ("avx512_bf16",), {"float32"}),
        (Target("cpu", 2, ("float16",)), ("avx512_bf16",), {"float32"}),
    ],
)
def test_bfloat16_is_offered_where_it_is_allowed_and_the_processor_multiplies_it(
    target: Target, instructions: tuple[str, ...], dtypes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.target.processor", lambda: Processor("any", instructions))
    group = make_group([node("MatMul", ["x", "w"], "o")], {"x": f(4, 8)}, {"w": f(8, 16)})
    offered = OpenvinoBackend().variants(group, target)
    assert not isinstance(offered, Refusal)
    assert {t.dtype for v in offered for t in (*v.inputs, *v.outputs)} == dtypes


@_UNITS
def test_the_whole_model_is_computed_in_bfloat16_between_two_conversions() -> None:
    """Not only stored so: a weight of 1 + 2^-9 is 1 in bfloat16."""
    x = np.array([[1, -1]], np.float32)
    group = make_group(
        [node("MatMul", ["x", "w"], "m"), node("MatMul", ["m", "e"], "o")],
        {"x": x},
        {"w": np.array([[1 + 2**-9, 0], [1, 0]], np.float32), "e": np.ones((2, 2), np.float32)},
    )
    taken = {"openvino": Taken(group.graph.all_nodes)}
    found = generate_candidates(group.graph, [OpenvinoBackend()], _ROUNDING, taken=taken)
    answers = {}
    for c in found.candidates:
        if len(c.subgraph.nodes) == 2:
            kernel = OpenvinoBackend().build(c.subgraph, c.variant, _ROUNDING)
            given, result = empty((1, 2), c.variant.inputs[0]), empty((1, 2), c.variant.outputs[0])
            given[...] = x
            kernel.bind([given], [result], NOTHING, IMMEDIATE)()
            answers[result.dtype.name] = result.astype(np.float32).tolist()
    assert answers == {"float32": [[2**-9, 2**-9]], "bfloat16": [[0.0, 0.0]]}


def test_a_processor_without_bfloat16_converts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library cuts off there, and does not round."""
    type = TensorType("float32", (2, 3))
    wide, narrow = plain("float32", (2, 3)), plain("bfloat16", (2, 3))
    for instructions, expected in ((("avx2",), False), (("avx2", "avx512_bf16"), True)):
        monkeypatch.setattr(backend, "processor", lambda told=instructions: Processor("any", told))
        assert OpenvinoBackend().converts(type, wide, narrow, TARGET) is expected
        assert OpenvinoBackend().converts(type, narrow, wide, TARGET) is expected


@_UNITS
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_conversions_to_and_from_bfloat16(order: tuple[int, ...]) -> None:
    """As they are restored, too."""
    type, library = TensorType("float32", (1, 3, 5, 7)), OpenvinoBackend()
    wide, narrow = (Format.of(t, type.static_shape, order) for t in ("float32", "bfloat16"))
    for source, destination in ((wide, narrow), (narrow, wide)):
        assert library.converts(type, source, destination, TARGET)
        kernel = library.build_conversion(type, source, destination, TARGET)
        stored = kernel.stored()
        assert stored is not None
        for built in (kernel, restore(stored)):
            x, y = (empty(type.static_shape, t) for t in (source, destination))
            x[...] = f(*type.static_shape)
            built.bind([x], [y], NOTHING, IMMEDIATE)()
            np.testing.assert_array_equal(y, x.astype(destination.dtype))
    assert not library.converts(type, wide, wide, TARGET)
    assert not library.converts(type, wide, Format("bfloat16", (0, 3, 1, 2)), TARGET)
    nothing = TensorType("float32", (0, 3))
    assert not library.converts(nothing, plain("float32", (0, 3)), plain("bfloat16", (0, 3)), TARGET)
