"""What all planners share: the values of a group as tensors of one graph, and its pointwise steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.backend import Variant
from collage_core.formats import Array
from collage_core.ir import Graph, Node, Subgraph
from collage_cudnn.chain import Chain
from collage_cudnn.description import Builder, Description, Tensor
from collage_cudnn.place import Place
from collage_cudnn.pointwise import emit, operands_of

__all__ = ["WAYS", "Site", "Way"]

_COMPUTED = "float32"


@dataclass(frozen=True, slots=True)
class Way:
    """How to say what can be said in several ways: cuDNN has other kernels for each. is_split: bounds on both
    sides are two steps. is_image: products with one matrix are convolutions of single pixels.
    """

    is_split: bool
    is_image: bool


WAYS = tuple(Way(is_split, is_image) for is_split in (False, True) for is_image in (False, True))


class Site:
    """One group in one of its variants.

    dtype: in which all its values are stored. Constants are stored so, too, where a convolution or a product
    reads them or adds them first; others are float32, in which all is computed.
    """

    def __init__(self, subgraph: Subgraph, variant: Variant, chain: Chain, way: Way) -> None:
        self.graph: Graph = subgraph.graph
        self.chain, self.way = chain, way
        self.dtype = variant.outputs[0].dtype
        self.formats = dict(zip(subgraph.inputs, variant.inputs, strict=True))
        self.formats |= dict(zip(subgraph.outputs, variant.outputs, strict=True))
        self.builder = Builder()
        self._position = {v: i for i, v in enumerate(subgraph.inputs)}
        self._known: dict[tuple[str, Tensor], int] = {}
        self._inputs: dict[int, int] = {}

    def value(self, name: str, tensor: Tensor) -> int:
        """The number of an input of the group, lying in memory as `tensor` says."""
        key = (name, tensor)
        if key not in self._known:
            self._known[key] = self.builder.tensor(tensor)
            self._inputs[self._known[key]] = self._position[name]
        return self._known[key]

    def constant(self, elements: Array, tensor: Tensor) -> int:
        return self.builder.constant(elements.astype(np.dtype(tensor.dtype)), tensor)

    def operand(self, name: str, place: Place, dtype: str, shape: Sequence[int] | None = None) -> int:
        """A value or a constant that broadcasts to the output. dtype: of a constant. shape: another one, of
        as many elements, in which it does so.
        """
        shape = self.graph.shape_of(name) if shape is None else tuple(shape)
        if self.graph.is_constant(name):
            data = np.asarray(self.graph.constants[name]).reshape(shape)
            return self.constant(place.elements(data), place.tensor(shape, dtype))
        return self.value(name, place.tensor(shape, self.dtype))

    def follow(self, place: Place, made: Mapping[str, int], steps: Sequence[Node]) -> int:
        """The steps, one after the other; the number of the last result. made: what there is already."""
        known = dict(made)
        to = _Steps(self, place)
        for node in steps:
            numbers = [
                known[v] if v in known else self.operand(v, place, _COMPUTED) for v in operands_of(node)
            ]
            known[node.outputs[0]] = emit(to, node, self.graph, numbers)
        return known[self.chain.output]

    def finish(self, output: int, place: Place, multiplies: bool = False) -> Description:
        stored = place.tensor(self.chain.shape, self.dtype)
        return self.builder.finish(output, stored, self._inputs, multiplies)


class _Steps:
    """An `Emitter` into a site's graph."""

    def __init__(self, site: Site, place: Place) -> None:
        self._site, self._place = site, place
        self.is_split = site.way.is_split
        self._dims = place.tensor(place.shape, _COMPUTED).dims

    def step(self, kind: str, *inputs: int, **attributes: float) -> int:
        return self._site.builder.step(kind, inputs, self._dims, **attributes)

    def number(self, value: float) -> int:
        return self._constant(np.full((1,) * len(self._place.shape), value))

    def channels(self, data: Array) -> int:
        rank = len(self._place.shape)
        return self._constant(data.reshape([1, -1, *[1] * (rank - 2)]))

    def _constant(self, data: Array) -> int:
        tensor = self._place.tensor(data.shape, _COMPUTED)
        return self._site.constant(self._place.elements(data), tensor)
