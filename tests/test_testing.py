"""The check of a backend lets right ones pass and catches wrong ones, each by what is wrong with it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
import pytest

from collage_core import backend as contract
from collage_core import patterns, testing
from collage_core.backend import Bound, Kernel, Variant, plain_variant
from collage_core.device import Target
from collage_core.devices import Queue
from collage_core.errors import DeclinedError, InputError, ModelError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.reference import ReferenceBackend
from collage_core.testing import bind, check_group, make_graph, make_group, make_model, node

Call = Callable[[Sequence[Array], Array, Array], object]
"""What a kernel does with its inputs, its output and its workspace."""
Offer = Callable[[Variant], Sequence[Variant] | Refusal]
"""What is offered in place of the plain variant."""

TARGET = Target("cpu", 1)
SHAPE = (3, 5)
COLUMNS = Format.of("float32", SHAPE, (1, 0))


def _array(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


INPUTS = {"x": _array(*SHAPE), "z": _array(*SHAPE, seed=1)}
OTHERS = {name: a[::-1].copy() for name, a in INPUTS.items()}
SUM = make_group([node("Add", ["x", "z"], "y")], INPUTS)


class _Kernel(Kernel):
    workspace_bytes = 64

    def __init__(self, call: Call, may_alias: Mapping[int, int]) -> None:
        self._call = call
        self.may_alias = may_alias

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return lambda: self._call(inputs, outputs[0], workspace)


class _Backend(ReferenceBackend):
    name = "careless"

    def __init__(
        self,
        call: Call,
        may_alias: Mapping[int, int] | None = None,
        offer: Offer = lambda plain: [plain],
        declined: Refusal | None = None,
    ) -> None:
        self._kernel = _Kernel(call, may_alias or {})
        self._offer = offer
        self._declined = declined

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return self._offer(plain_variant(subgraph))

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        return [self._declined] * len(subgraphs)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return self._kernel


def _add(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Right, in place of either input, too."""
    np.add(inputs[0], inputs[1], out=output)


def _add_apart(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Wrong in place of the second input."""
    output[...] = inputs[0]
    output += inputs[1]


def _copy(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    output[...] = inputs[0]


def test_right_kernels_are_called_three_times_and_in_place() -> None:
    calls: list[str] = []

    def add(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        addresses = [a.ctypes.data for a in (output, *inputs, workspace)]
        assert not any(a % 64 for a in addresses)
        assert workspace.shape == (64,)
        calls.append(f"{addresses.index(addresses[0], 1)}" if addresses[0] in addresses[1:] else "")
        _add(inputs, output, workspace)

    turned = Variant((COLUMNS, plain_variant(SUM).inputs[1]), (COLUMNS,))
    backend = _Backend(add, {0: 0}, lambda plain: [turned, plain])
    kernels = check_group(backend, SUM, INPUTS, TARGET, other_inputs=OTHERS)
    assert list(kernels) == [turned, plain_variant(SUM)]
    assert calls == ["", "", "", "1"] * 2


def test_shared_buffers_are_tried_in_one_format_only() -> None:
    """Core does not let others share, whatever a kernel says."""
    turned = Variant(plain_variant(SUM).inputs, (COLUMNS,))
    check_group(_Backend(_add_apart, {0: 1}, lambda plain: [turned]), SUM, INPUTS, TARGET)


def test_the_reference_passes_with_a_part_of_a_graph() -> None:
    """Of several outputs and dtypes; what is read is computed from the graph's inputs."""
    nodes = [
        node("Neg", ["x"], "n"),
        node("TopK", ["n", "k"], ["v", "i"], axis=0),
        node("Less", ["n", "h"], "l"),
        node("Mul", ["v", "v"], "y"),
    ]
    graph = make_graph(nodes, {"x": INPUTS["x"]}, {"k": [2], "h": np.float32(0)}, ["i", "l", "y"])
    part = Subgraph(graph, [n.id for n in graph.nodes[1:3]])
    assert (part.inputs, part.outputs) == (("n",), ("v", "i", "l"))
    assert len(check_group(ReferenceBackend(), part, INPUTS, TARGET)) == 1


def _once(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Right when the workspace is as it was at first."""
    if workspace[0] == 0xFF:
        _add(inputs, output, workspace)


def _remembers(calls: int) -> Call:
    """Answers anew in the first so many calls only."""
    answers: list[Array] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        if len(answers) < calls:
            answers.append(inputs[0] + inputs[1])
        output[...] = answers[-1]

    return call


def _writes_once() -> Call:
    called: list[bool] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        if not called:
            _add(inputs, output, workspace)
        called.append(True)

    return call


def _drifts() -> Call:
    calls: list[float] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        _add(inputs, output, workspace)
        output *= np.float32(1 + 1e-6 * len(calls))
        calls.append(1)

    return call


def _changes_input(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    _add(inputs, output, workspace)
    inputs[1][0, 0] = 0


def _leaves_out(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    np.add(inputs[0][:, 1:], inputs[1][:, 1:], out=output[:, 1:])


def _trespasses(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    _add(inputs, output, workspace)
    np.lib.stride_tricks.as_strided(output, (16,), (4,))[15] = 0


def _raises(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    raise RuntimeError("out of tickets")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: lambda i, o, w: _add((i[0], -i[1]), o, w), "call 1: output 'y' has error"),
        (lambda: lambda i, o, w: _add(i, o[0], w), "call 1: ValueError: "),
        (_writes_once, "call 2: output 'y' has error"),
        (lambda: _once, "call 2: output 'y' has error"),
        (_drifts, "second call answers otherwise"),
        (lambda: _remembers(1), "call 3: output 'y' has error"),
        (lambda: _changes_input, "changed its input 'z'"),
        (lambda: _leaves_out, "call 1: output 'y' has NaN"),
        (lambda: _trespasses, "outside its buffers, behind output 'y'"),
        (lambda: lambda i, o, w: 7, "error code 7"),
        (lambda: _raises, "RuntimeError: out of tickets"),
    ],
)
def test_a_wrong_kernel_is_caught(make: Callable[[], Call], reason: str) -> None:
    where = r"^careless, Add, \(float32:plain, float32:plain\) -> \(float32:plain\): "
    with pytest.raises(AssertionError, match=where + ".*" + reason):
        check_group(_Backend(make()), SUM, INPUTS, TARGET, other_inputs=OTHERS)


def test_answers_that_differ_in_their_last_places_may_be_allowed() -> None:
    check_group(_Backend(_drifts()), SUM, INPUTS, TARGET, repeatable=False)
    with pytest.raises(AssertionError, match=r"call 2: output 'y' has error"):
        check_group(_Backend(_drifts()), SUM, INPUTS, TARGET, repeatable=False, tolerances={"float32": 5e-7})


def test_another_nan_and_another_zero_are_the_same_answer() -> None:
    x = np.array([np.nan, 0, 1], np.float32)
    answers: list[bytes] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        output[...] = inputs[0]
        output[:2] = np.copysign(output[:2], (-1) ** len(answers))
        answers.append(output.tobytes())

    check_group(_Backend(call), make_group([node("Identity", ["x"], "y")], {"x": x}), {"x": x}, TARGET)
    assert len(set(answers)) == 2


def test_inputs_are_not_there_yet_when_a_kernel_is_bound() -> None:
    class Early(_Kernel):
        def bind(
            self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
        ) -> Bound:
            answer = inputs[0] + inputs[1]
            return partial(_copy, [answer], outputs[0], workspace)

    with pytest.raises(AssertionError, match=r"call 1: output 'y' has NaN"):
        check_group(ReferenceBackend(), SUM, INPUTS, TARGET, build=lambda *_: Early(_add, {}))


def test_a_kernel_that_is_wrong_in_place_only_is_caught() -> None:
    check_group(_Backend(_add_apart, {0: 0}), SUM, INPUTS, TARGET)
    with pytest.raises(AssertionError, match=r": output 0 in the buffer of input 1: output 'y' has error"):
        check_group(_Backend(_add_apart, {0: 1}), SUM, INPUTS, TARGET)


def test_other_inputs_are_not_written_in_place_either() -> None:
    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        in_place = output.ctypes.data == inputs[0].ctypes.data
        _add(inputs, output, workspace)
        if in_place:
            inputs[1].fill(0)

    with pytest.raises(AssertionError, match="in the buffer of input 0: it changed its input 'z'"):
        check_group(_Backend(call, {0: 0}), SUM, INPUTS, TARGET)


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_an_output_is_written_whatever_it_should_be(dtype: str) -> None:
    """Bytes of 0xFF, which outputs are full of, are true, and -1."""
    x = np.full(SHAPE, -1, np.int8).astype(dtype)
    group = make_group([node("Identity", ["x"], "y")], {"x": x})
    with pytest.raises(AssertionError, match=r"call [12]: output 'y'"):
        check_group(_Backend(lambda i, o, w: None), group, {"x": x}, TARGET)


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
        check_group(_Backend(_add, offer=offer), SUM, INPUTS, TARGET)


def test_what_is_offered_is_supported() -> None:
    backend = _Backend(_add, declined=Refusal("not today", "n"))
    with pytest.raises(AssertionError, match=r"`supported` says .*not today"):
        check_group(backend, SUM, INPUTS, TARGET)


@pytest.mark.parametrize("method", ["variants", "supported"])
def test_what_asking_raises_names_the_group(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no threads")

    backend = _Backend(_add)
    monkeypatch.setattr(backend, method, fail)
    with pytest.raises(AssertionError, match=r"^careless, Add: ZeroDivisionError: no threads$"):
        check_group(backend, SUM, INPUTS, TARGET)


def test_what_cannot_be_built_is_named() -> None:
    def build(subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise MemoryError("8 GB")

    with pytest.raises(AssertionError, match=r"^reference, Add, \(float32.*: MemoryError: 8 GB"):
        check_group(ReferenceBackend(), SUM, INPUTS, TARGET, build=build)


def test_a_variant_that_is_declined_when_it_is_built_is_left_out() -> None:
    turned = Variant((COLUMNS, plain_variant(SUM).inputs[1]), (COLUMNS,))
    backend = _Backend(_add, offer=lambda plain: [turned, plain])

    def build(subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        if variant == turned:
            raise DeclinedError("only slow code for it")
        return backend.build(subgraph, variant, target)

    assert list(check_group(backend, SUM, INPUTS, TARGET, build=build)) == [plain_variant(SUM)]
    backend = _Backend(_add, offer=lambda plain: [turned])
    with pytest.raises(AssertionError, match=r"^careless, Add: every variant is declined"):
        check_group(backend, SUM, INPUTS, TARGET, build=build)


def test_other_answers_and_tolerances() -> None:
    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        np.multiply(inputs[0] + inputs[1], np.float32(1 + 1e-5), out=output)

    backend, expected = _Backend(call), {"y": INPUTS["x"] + INPUTS["z"]}
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
        check_group(_Backend(_add), SUM, INPUTS, TARGET, expected={"x": INPUTS["x"]})
    for inputs in ({"x": INPUTS["x"]}, {**INPUTS, "z": INPUTS["z"][:1]}):
        with pytest.raises(InputError, match="'z'"):
            check_group(_Backend(_add), SUM, inputs, TARGET)
        with pytest.raises(InputError, match="'z'"):
            check_group(_Backend(_add), SUM, INPUTS, TARGET, other_inputs=inputs)


def test_the_reference_is_not_asked_where_answers_are_given() -> None:
    made, x = node("Frobnicate", ["x"], "y", domain="nowhere"), {"x": INPUTS["x"]}
    group = make_group([made], x, types={"y": TensorType("float32", SHAPE)})
    assert group.graph.opsets["nowhere"] == 1
    assert check_group(_Backend(_copy), group, x, TARGET, expected={"y": x["x"]})
    with pytest.raises(ModelError, match="Frobnicate"):
        check_group(_Backend(_copy), group, x, TARGET)


def test_buffers_of_a_bound_kernel() -> None:
    held: list[list[bytes]] = []

    class Watched(_Kernel):
        def bind(
            self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
        ) -> Bound:
            held.append([a.tobytes() for a in (*inputs, *outputs, workspace)])
            return super().bind(inputs, outputs, workspace, queue)

    variant = Variant((COLUMNS, COLUMNS), (COLUMNS,))
    bound = bind(Watched(_add, {}), SUM, variant, INPUTS)
    assert {b for array in held[0] for b in array} == {0xFF}
    assert bound.outputs[0].strides == (4, 4 * SHAPE[0])
    assert not bound.call()
    np.testing.assert_array_equal(bound.outputs[0], INPUTS["x"] + INPUTS["z"])
    shared = bind(Watched(_add, {}), SUM, variant, INPUTS, {0: 1})
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
    bound = bind(_Kernel(_add, {}), SUM, plain_variant(SUM), INPUTS)
    with pytest.raises(InputError, match=reason):
        bound.load(inputs)
    with pytest.raises(InputError, match=reason):
        bind(_Kernel(_add, {}), SUM, plain_variant(SUM), inputs)


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
    model = make_model(nodes, {"x": _array(1, 2, 3)}, {"c": 0.5}, opset=17)
    assert [v.name for v in model.graph.output] == ["i"]
    assert model.ir_version == 10
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert model.graph.initializer[0].data_type == onnx.TensorProto.DOUBLE
    group = make_group(nodes[:1], {"x": _array(1, 2, 3)}, outputs=["r", "x"])
    assert group.outputs == ("r", "x")
    assert group.graph.type_of("r") == TensorType("float32", (1, 2, 3))
