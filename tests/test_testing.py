"""The check of a backend catches wrong offers, compares with what it is given, and says what is missing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from careless_backend import (
    COLUMNS,
    INPUTS,
    OTHERS,
    SHAPE,
    SUM,
    TARGET,
    CarelessBackend,
    CarelessKernel,
    Offer,
    add_in_place,
    array,
    copy_input,
)

from collage_core import backend as contract
from collage_core import patterns, testing
from collage_core.backend import Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import DeclinedError, InputError, ModelError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.reference import ReferenceBackend
from collage_core.target import Target
from collage_core.testing import bind, check_group, make_group, make_model, node

_OTHER_RANK = Format("float32", (0, 1, 2))
_OTHER_DTYPE = Format("float64", (0, 1))


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (lambda v: Refusal("not today", "n"), "no variant is offered: n: not today"),
        (lambda v: [], "no variant is offered"),
        (lambda v: [v, Variant(v.inputs, (COLUMNS,)), v], "a variant is offered twice"),
        (lambda v: [Variant(v.inputs, (_OTHER_DTYPE,))], r"output 'y' is float32\[3, 5\], not float64:plain"),
        (lambda v: [Variant(v.inputs, (_OTHER_RANK,))], r"output 'y' is float32\[3, 5\], not float32:plain"),
        (lambda v: [Variant((v.inputs[0], _OTHER_DTYPE), v.outputs)], "input 'z' is float32"),
        (lambda v: [Variant(v.inputs[:1], v.outputs)], "it has 1 formats of 2 inputs"),
        (lambda v: [Variant(v.inputs, v.outputs * 2)], "it has 2 formats of 1 outputs"),
    ],
)
def test_a_wrong_offer_is_caught(offer: Offer, reason: str) -> None:
    with pytest.raises(AssertionError, match=rf"^careless, Add.*: {reason}"):
        check_group(CarelessBackend(add_in_place, offer=offer), SUM, INPUTS, TARGET)


def test_what_is_offered_is_supported() -> None:
    backend = CarelessBackend(add_in_place, declined=Refusal("not today", "n"))
    with pytest.raises(AssertionError, match=r"`supported` says .*not today"):
        check_group(backend, SUM, INPUTS, TARGET)


@pytest.mark.parametrize("method", ["variants", "supported"])
def test_what_asking_raises_names_the_group(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no threads")

    backend = CarelessBackend(add_in_place)
    monkeypatch.setattr(backend, method, fail)
    with pytest.raises(AssertionError, match=r"^careless, Add: ZeroDivisionError: no threads$"):
        check_group(backend, SUM, INPUTS, TARGET)


def test_what_cannot_be_built_is_named() -> None:
    class Greedy(ReferenceBackend):
        def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
            raise MemoryError("8 GB")

    with pytest.raises(AssertionError, match=r"^reference, Add, \(float32.*: MemoryError: 8 GB"):
        check_group(Greedy(), SUM, INPUTS, TARGET)


def test_a_variant_that_is_declined_when_it_is_built_is_left_out() -> None:
    turned = Variant((COLUMNS, plain_variant(SUM).inputs[1]), (COLUMNS,))

    class Choosy(CarelessBackend):
        def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
            if variant == turned:
                raise DeclinedError("only slow code for it")
            return super().build(subgraph, variant, target)

    backend = Choosy(add_in_place, offer=lambda plain: [turned, plain])
    assert list(check_group(backend, SUM, INPUTS, TARGET)) == [plain_variant(SUM)]
    backend = Choosy(add_in_place, offer=lambda plain: [turned])
    with pytest.raises(AssertionError, match=r"^careless, Add: every variant is declined"):
        check_group(backend, SUM, INPUTS, TARGET)


def test_other_answers_and_tolerances() -> None:
    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        np.multiply(inputs[0] + inputs[1], np.float32(1 + 1e-5), out=output)

    backend, expected = CarelessBackend(call), {"y": INPUTS["x"] + INPUTS["z"]}
    check_group(backend, SUM, INPUTS, TARGET, tolerances={"float64": 0.0, "float32": 2e-5})
    with pytest.raises(AssertionError, match=r"output 'y' has error .*, more than 1e-06"):
        check_group(backend, SUM, INPUTS, TARGET, tolerances={"float32": 1e-6})
    check_group(backend, SUM, INPUTS, TARGET, expected=expected, other_inputs=OTHERS)
    for wrong, reason in (
        (2 * expected["y"], "has error 0.5"),
        (expected["y"][:2], "has shape"),
        (expected["y"].astype(np.float64), "is float64"),
    ):
        with pytest.raises(AssertionError, match=f"output 'y' {reason}"):
            check_group(backend, SUM, INPUTS, TARGET, expected={"y": wrong}, tolerances={"float32": 1.0})


def test_what_was_not_given_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^careless, Add: `expected` lacks output 'y'$"):
        check_group(CarelessBackend(add_in_place), SUM, INPUTS, TARGET, expected={"x": INPUTS["x"]})
    for inputs in ({"x": INPUTS["x"]}, {**INPUTS, "z": INPUTS["z"][:1]}):
        with pytest.raises(InputError, match="'z'"):
            check_group(CarelessBackend(add_in_place), SUM, inputs, TARGET)
        with pytest.raises(InputError, match="'z'"):
            check_group(CarelessBackend(add_in_place), SUM, INPUTS, TARGET, other_inputs=inputs)


def test_the_reference_is_not_asked_where_answers_are_given() -> None:
    made, x = node("Frobnicate", ["x"], "y", domain="nowhere"), {"x": INPUTS["x"]}
    group = make_group([made], x, types={"y": TensorType("float32", SHAPE)})
    assert group.graph.opsets["nowhere"] == 1
    assert check_group(CarelessBackend(copy_input), group, x, TARGET, expected={"y": x["x"]})
    with pytest.raises(ModelError, match="Frobnicate"):
        check_group(CarelessBackend(copy_input), group, x, TARGET)


def test_buffers_of_a_bound_kernel() -> None:
    held: list[list[bytes]] = []

    class Watched(CarelessKernel):
        def bind(
            self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
        ) -> Bound:
            held.append([a.tobytes() for a in (*inputs, *outputs, workspace)])
            return super().bind(inputs, outputs, workspace, queue)

    variant = Variant((COLUMNS, COLUMNS), (COLUMNS,))
    bound = bind(Watched(add_in_place, {}), SUM, variant, INPUTS)
    assert {b for array in held[0] for b in array} == {0xFF}
    assert bound.outputs[0].strides == (4, 4 * SHAPE[0])
    assert not bound.call()
    np.testing.assert_array_equal(bound.outputs[0], INPUTS["x"] + INPUTS["z"])
    shared = bind(Watched(add_in_place, {}), SUM, variant, INPUTS, {0: 1})
    assert shared.outputs[0] is shared.inputs[1]
    shared.load({"other": INPUTS["x"], "z": INPUTS["z"], "x": OTHERS["x"]})
    assert not shared.call()
    np.testing.assert_array_equal(shared.outputs[0], OTHERS["x"] + INPUTS["z"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, r"^input 'z' is missing; given: x$"),
        ({"z": INPUTS["z"][:1]}, r"^input 'z' is float32\[1, 5\], not float32\[3, 5\]$"),
        ({"z": INPUTS["z"].astype(np.float64)}, r"^input 'z' is float64\[3, 5\], not float32\[3, 5\]$"),
    ],
)
def test_other_inputs_are_neither_broadcast_nor_cast(given: dict[str, Array], reason: str) -> None:
    inputs = {"x": INPUTS["x"], **given}
    bound = bind(CarelessKernel(add_in_place, {}), SUM, plain_variant(SUM), INPUTS)
    with pytest.raises(InputError, match=reason):
        bound.load(inputs)
    with pytest.raises(InputError, match=reason):
        bind(CarelessKernel(add_in_place, {}), SUM, plain_variant(SUM), inputs)


def test_the_examples_of_the_docstrings_run() -> None:
    """The smallest backend, and its check."""
    code = [
        textwrap.dedent(block)
        for module in (contract, testing)
        for block in re.findall(r"::\n\n(.*?)\n\n(?=\S)", module.__doc__ or "", re.DOTALL)
    ]
    assert len(code) == 2
    exec("\n".join(code), {**vars(contract), **vars(patterns), **vars(testing)})


def test_models_say_what_they_are_told() -> None:
    nodes = [node("Relu", ["x"], "r", name="first"), node("MaxPool", ["r"], ["", "i"], kernel_shape=[1])]
    assert [n.name for n in nodes] == ["first", "i"]
    model = make_model(nodes, {"x": array(1, 2, 3)}, {"c": 0.5}, opset=17)
    assert [v.name for v in model.graph.output] == ["i"]
    assert model.ir_version == 10
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert model.graph.initializer[0].data_type == onnx.TensorProto.DOUBLE
    group = make_group(nodes[:1], {"x": array(1, 2, 3)}, outputs=["r", "x"])
    assert group.outputs == ("r", "x")
    assert group.graph.type_of("r") == TensorType("float32", (1, 2, 3))
