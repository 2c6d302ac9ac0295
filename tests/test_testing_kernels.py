"""The check of a backend lets right kernels pass and catches wrong ones, each by what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from careless_backend import (
    COLUMNS,
    INPUTS,
    OTHERS,
    SHAPE,
    SUM,
    TARGET,
    Call,
    CarelessBackend,
    CarelessKernel,
    add_in_place,
    copy_input,
)

from collage_core.backend import Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.reference import ReferenceBackend
from collage_core.target import Target
from collage_core.testing import check_group, make_graph, make_group, node


def _add_apart(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Wrong in place of the second input."""
    output[...] = inputs[0]
    output += inputs[1]


def test_right_kernels_are_called_again_in_place_and_in_two_contexts() -> None:
    calls: list[str] = []

    def add(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        addresses = [a.ctypes.data for a in (output, *inputs, workspace)]
        assert not any(a % 64 for a in addresses)
        assert workspace.shape == (64,)
        calls.append(f"{addresses.index(addresses[0], 1)}" if addresses[0] in addresses[1:] else "")
        add_in_place(inputs, output, workspace)

    turned = Variant((COLUMNS, plain_variant(SUM).inputs[1]), (COLUMNS,))
    backend = CarelessBackend(add, {0: 0}, lambda plain: [turned, plain])
    kernels = check_group(backend, SUM, INPUTS, TARGET, other_inputs=OTHERS)
    assert list(kernels) == [turned, plain_variant(SUM)]
    assert calls == ["", "", "", "1", "", "", ""] * 2


def test_shared_buffers_are_tried_in_one_format_only() -> None:
    """Core does not let others share, whatever a kernel says."""
    turned = Variant(plain_variant(SUM).inputs, (COLUMNS,))
    check_group(CarelessBackend(_add_apart, {0: 1}, lambda plain: [turned]), SUM, INPUTS, TARGET)


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
        add_in_place(inputs, output, workspace)


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
            add_in_place(inputs, output, workspace)
        called.append(True)

    return call


def _drifts() -> Call:
    calls: list[float] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        add_in_place(inputs, output, workspace)
        output *= np.float32(1 + 1e-6 * len(calls))
        calls.append(1)

    return call


def _changes_input(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    add_in_place(inputs, output, workspace)
    inputs[1][0, 0] = 0


def _leaves_out(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    np.add(inputs[0][:, 1:], inputs[1][:, 1:], out=output[:, 1:])


def _trespasses(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    add_in_place(inputs, output, workspace)
    np.lib.stride_tricks.as_strided(output, (16,), (4,))[15] = 0


def _raises(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    raise RuntimeError("out of tickets")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: lambda i, o, w: add_in_place((i[0], -i[1]), o, w), "call 1: output 'y' has error"),
        (lambda: lambda i, o, w: add_in_place(i, o[0], w), "call 1: ValueError: "),
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
        check_group(CarelessBackend(make()), SUM, INPUTS, TARGET, other_inputs=OTHERS)


def test_answers_that_differ_in_their_last_places_may_be_allowed() -> None:
    check_group(CarelessBackend(_drifts()), SUM, INPUTS, TARGET, repeatable=False)
    with pytest.raises(AssertionError, match=r"call 2: output 'y' has error"):
        check_group(
            CarelessBackend(_drifts()), SUM, INPUTS, TARGET, repeatable=False, tolerances={"float32": 5e-7}
        )


def test_another_nan_and_another_zero_are_the_same_answer() -> None:
    x = np.array([np.nan, 0, 1], np.float32)
    answers: list[bytes] = []

    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        output[...] = inputs[0]
        output[:2] = np.copysign(output[:2], (-1) ** len(answers))
        answers.append(output.tobytes())

    check_group(CarelessBackend(call), make_group([node("Identity", ["x"], "y")], {"x": x}), {"x": x}, TARGET)
    assert len(set(answers)) == 2


def test_inputs_are_not_there_yet_when_a_kernel_is_bound() -> None:
    class Early(CarelessKernel):
        def bind(
            self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
        ) -> Bound:
            answer = inputs[0] + inputs[1]
            return partial(copy_input, [answer], outputs[0], workspace)

    class Hasty(ReferenceBackend):
        def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
            return Early(add_in_place, {})

    with pytest.raises(AssertionError, match=r"call 1: output 'y' has NaN"):
        check_group(Hasty(), SUM, INPUTS, TARGET)


def test_a_kernel_that_is_wrong_in_place_only_is_caught() -> None:
    check_group(CarelessBackend(_add_apart, {0: 0}), SUM, INPUTS, TARGET)
    with pytest.raises(AssertionError, match=r": output 0 in the buffer of input 1: output 'y' has error"):
        check_group(CarelessBackend(_add_apart, {0: 1}), SUM, INPUTS, TARGET)


def test_other_inputs_are_not_written_in_place_either() -> None:
    def call(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
        in_place = output.ctypes.data == inputs[0].ctypes.data
        add_in_place(inputs, output, workspace)
        if in_place:
            inputs[1].fill(0)

    with pytest.raises(AssertionError, match="in the buffer of input 0: it changed its input 'z'"):
        check_group(CarelessBackend(call, {0: 0}), SUM, INPUTS, TARGET)


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_an_output_is_written_whatever_it_should_be(dtype: str) -> None:
    """Bytes of 0xFF, which outputs are full of, are true, and -1."""
    x = np.full(SHAPE, -1, np.int8).astype(dtype)
    group = make_group([node("Identity", ["x"], "y")], {"x": x})
    with pytest.raises(AssertionError, match=r"call [12]: output 'y'"):
        check_group(CarelessBackend(lambda i, o, w: None), group, {"x": x}, TARGET)
