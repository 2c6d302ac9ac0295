"""64-bit integers: as indices and shapes they cross the border; what would be computed with them is declined,
for the library has 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from collage_openvino.backend import OpenvinoBackend
from onnx import TensorProto, helper

from collage_core.backend import Variant, plain_variant
from collage_core.devices import IMMEDIATE
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.target import Target
from collage_core.testing import make_group

Check = Callable[..., list[Variant]]

TARGET = Target("cpu", 1)
LARGE = 2**33
WHOLE, X = np.arange(6).reshape(2, 3), np.arange(24, dtype=np.float32).reshape(6, 4)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), name=outputs, **attributes)


def test_the_library_has_32_bits() -> None:
    """Should that change, nothing needs to be declined any more."""
    part = make_group([_node("Add", "x c", "o")], {"x": WHOLE}, constants={"c": np.array(LARGE)})
    found = np.empty_like(WHOLE)
    kernel = OpenvinoBackend().build(part, plain_variant(part), TARGET)
    assert not kernel.bind([WHOLE], [found], np.empty(0, np.uint8), IMMEDIATE)()
    assert not (found == WHOLE + LARGE).any()


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "reason"),
    [
        ([_node("Add", "i c", "o")], {"i": WHOLE}, {"c": np.array(LARGE)}, "o: 'i' is int64[2,3]"),
        ([_node("Equal", "i c", "o")], {"i": WHOLE}, {"c": np.array(LARGE)}, "o: 'i' is int64[2,3]"),
        ([_node("Cast", "i", "o", to=TensorProto.FLOAT)], {"i": WHOLE}, {}, "o: 'i' is int64[2,3]"),
        ([_node("Transpose", "i", "o")], {"i": WHOLE}, {}, "o: 'i' is int64[2,3]"),
        ([_node("ArgMax", "i", "o")], {"i": WHOLE}, {}, "o: 'i' is int64[2,3]"),
        ([_node("TopK", "i k", "v o")], {"i": WHOLE}, {"k": np.array([1])}, "v o: 'i' is int64[2,3]"),
        ([_node("Gather", "i i", "o")], {"i": WHOLE % 2}, {}, "o: 'i' is int64[2,3]"),
        (
            [_node("Flatten", "i", "f"), _node("Mod", "f c", "m"), _node("Gather", "x m", "o")],
            {"i": WHOLE, "x": X},
            {"c": np.array(3)},
            "m: 'i' is int64[2,3]",
        ),
        ([_node("Cast", "x", "o", to=TensorProto.INT64)], {"x": X}, {}, "o: 'o' is int64[6,4]"),
        (
            [_node("ArgMax", "x", "a"), _node("Add", "a c", "o")],
            {"x": X},
            {"c": np.array(3)},
            "o: 'o' is int64[1,4]",
        ),
        ([_node("Gather", "c x", "o")], {"x": WHOLE.astype(np.int32)}, {"c": np.arange(6) + LARGE}, "o: 'c'"),
        (
            [
                _node("Cast", "x", "w", to=TensorProto.INT64),
                _node("Add", "w c", "a"),
                _node("Cast", "a", "o", to=TensorProto.FLOAT),
            ],
            {"x": X},
            {"c": np.array(LARGE)},
            "a: 'c' is int64[]",
        ),
    ],
)
def test_calculating_with_them_is_declined(
    nodes: Sequence[Any], inputs: dict[str, Array], constants: dict[str, Array], reason: str
) -> None:
    part = make_group(nodes, inputs, constants, ["o"])
    refusal = OpenvinoBackend().variants(part, TARGET)
    assert isinstance(refusal, Refusal)
    assert str(refusal).startswith(reason)
    assert refusal.reason.endswith("OpenVINO computes in 32 bits")
    assert OpenvinoBackend().supported([part], TARGET) == [refusal]


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "constants"),
    [
        ([_node("Gather", "x i", "o")], {"x": X, "i": WHOLE}, ("o",), {}),
        (
            [_node("Reshape", "i c", "r"), _node("Unsqueeze", "r d", "u"), _node("GatherND", "x u", "o")],
            {"x": X, "i": WHOLE},
            ("o",),
            {"c": np.array([6]), "d": np.array([1])},
        ),
        ([_node("Shape", "i", "o")], {"i": WHOLE}, ("o",), {}),
        (
            [_node("OneHot", "i k v", "o")],
            {"i": WHOLE},
            ("o",),
            {"k": np.array(7), "v": np.array([0, 1], np.float32)},
        ),
        ([_node("TopK", "x k", "v o")], {"x": X}, ("v", "o"), {"k": np.array([2])}),
        (
            [_node("ArgMax", "x", "a"), _node("Transpose", "a", "t"), _node("Concat", "t c", "o", axis=0)],
            {"x": X},
            ("a", "o"),
            {"c": np.array([[7]])},
        ),
        ([_node("Gather", "c x", "o")], {"x": WHOLE.astype(np.int32)}, ("o",), {"c": np.arange(6) - 5}),
        (
            [_node("ArgMin", "x", "a"), _node("Cast", "a", "b", to=1), _node("Add", "b x", "o")],
            {"x": X},
            ("o",),
            {},
        ),
        (
            [_node("Slice", "x s e", "o")],
            {"x": X},
            ("o",),
            {"s": np.array([1]), "e": np.array([np.iinfo(np.int64).max])},
        ),
    ],
)
def test_indices_and_shapes_are_not(
    check: Check,
    nodes: Sequence[Any],
    inputs: dict[str, Array],
    outputs: Sequence[str],
    constants: dict[str, Array],
) -> None:
    check(nodes, inputs, outputs, constants)
