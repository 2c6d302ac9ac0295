"""One computation in three notations: as an ONNX graph of one group, in NumPy and in torch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.formats import Array, Format, channels_last, empty, plain
from collage_core.ir import Graph, Subgraph, from_model

__all__ = ["Case", "Draw", "floats", "indices", "positive"]

_OPSET = 20
_IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Draw:
    """How an array is drawn: its shape, its dtype, and what makes it from a generator."""

    shape: tuple[int, ...]
    dtype: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def floats(*shape: int, scale: float = 1.0) -> Draw:
    """float32 from N(0, scale^2)."""
    return Draw(shape, "float32", lambda rng, s: rng.standard_normal(s, np.float32) * np.float32(scale))


def positive(*shape: int) -> Draw:
    """float32, uniform over 0.5..1.5: their sums do not cancel out."""
    return Draw(shape, "float32", lambda rng, s: rng.random(s, np.float32) + np.float32(0.5))


def indices(*shape: int, below: int) -> Draw:
    """int64, uniform over 0..below-1."""
    return Draw(shape, "int64", lambda rng, s: rng.integers(0, below, s, np.int64))


@dataclass(frozen=True)
class Case:
    """One row of the table.

    name: "family/size". kind: what sort of computation; the line about bandwidth holds for some of them.
    numpy: the computation over the inputs and then the weights, in their order; an array or a tuple of them.
    torch: the same, after the module `torch`; its results are contiguous in the order of the inputs, as the
    other columns' are. weights: constants of the graph that are read as tensors. constants: those that are
    parameters (axes, shapes, factors), which NumPy and torch have in their code. channels_last: how tensors
    of the largest rank lie. moved_bytes: what has to be moved where that is not every input and every output
    once.
    """

    name: str
    kind: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Draw]
    numpy: Callable[..., Any]
    torch: Callable[..., Any]
    weights: Mapping[str, Draw] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("o",)
    channels_last: bool = False
    moved_bytes: int | None = None

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    def arrays(self) -> dict[str, Array]:
        """Inputs and weights by name, the same at every call, each aligned and laid out as the case says."""
        return {name: self._array(name, draw) for name, draw in {**self.inputs, **self.weights}.items()}

    def format(self, dtype: str, shape: tuple[int, ...]) -> Format:
        """How a tensor of the case lies: weights and what has fewer dimensions than images, row-major."""
        return channels_last(dtype, shape) if self.channels_last and len(shape) == 4 else plain(dtype, shape)

    def graph(self, arrays: Mapping[str, Array]) -> Graph:
        """The ONNX graph, with the weights among `arrays`."""
        weights = {name: arrays[name] for name in self.weights} | dict(self.constants)
        proto = helper.make_graph(
            list(self.nodes),
            self.family,
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(np.dtype(draw.dtype)), draw.shape
                )
                for name, draw in self.inputs.items()
            ],
            [onnx.ValueInfoProto(name=o) for o in self.outputs],
            [numpy_helper.from_array(np.asarray(a, order="C"), name) for name, a in weights.items()],
        )
        opset = helper.make_opsetid("", _OPSET)
        return from_model(helper.make_model(proto, opset_imports=[opset], ir_version=_IR_VERSION))

    def group(self, arrays: Mapping[str, Array]) -> Subgraph:
        """The whole graph as one group."""
        graph = self.graph(arrays)
        return Subgraph(graph, graph.all_nodes, graph.outputs)

    def expected(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """NumPy's answer by output."""
        return dict(zip(self.outputs, results(self.numpy(*arrays.values())), strict=True))

    def bytes(self, expected: Mapping[str, Array]) -> int:
        """Bytes that have to be moved: every input and weight read once, every output written once."""
        if self.moved_bytes is not None:
            return self.moved_bytes
        read = sum(draw.size_bytes for draw in [*self.inputs.values(), *self.weights.values()])
        return read + sum(o.nbytes for o in expected.values())

    def _array(self, name: str, draw: Draw) -> Array:
        format = self.format(draw.dtype, draw.shape) if name in self.inputs else plain(draw.dtype, draw.shape)
        array = empty(draw.shape, format)
        array[...] = draw.draw(np.random.default_rng(zlib.crc32(f"{self.name} {name}".encode())), draw.shape)
        return array


def results(answer: Any) -> tuple[Any, ...]:
    """One result or several as a tuple."""
    return tuple(answer) if isinstance(answer, tuple | list) else (answer,)
