"""What plugins of graph libraries share: the formats at a group's border, the search for what is known to be
wrong inside, and a peer's session on fixed buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from collage_core.backend import Bound, Variant, plain_variant
from collage_core.errors import BackendError, InputError, Refusal
from collage_core.formats import Array, Format, channels_last, empty, plain
from collage_core.ir import Graph, Node, Operator, Subgraph, TensorType, bodies_of
from collage_core.ir.bodies import closed
from collage_core.peer import PeerSession

__all__ = ["BufferedPeerSession", "Fault", "border_variants", "known_fault"]

Fault = Callable[[Operator], "str | None"]
"""What a library computes otherwise for an operator; None if nothing is known. Of ONNX's own domain."""

_IMAGE_OPS = frozenset(
    [
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DepthToSpace",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "InstanceNormalization",
        "LRN",
        "LpPool",
        "MaxPool",
        "Resize",
        "SpaceToDepth",
        "Upsample",
    ]
)
_IMAGE_RANKS = (4, 5)


def border_variants(subgraph: Subgraph) -> list[Variant]:
    """Everything row-major; and where an operator on images is inside, or right beside, float32 values of
    rank 4 and 5 channels-last as well, if that is another order: what comes between two convolutions should
    not have to change their layout. Shapes are static.
    """
    row_major = plain_variant(subgraph)
    if not _is_about_images(subgraph):
        return [row_major]
    graph = subgraph.graph
    images = Variant(
        tuple(_as_image(graph, v) for v in subgraph.inputs),
        tuple(_as_image(graph, v) for v in subgraph.outputs),
    )
    return [row_major] if images == row_major else [row_major, images]


def known_fault(subgraph: Subgraph, library: str, fault: Fault) -> Refusal | None:
    """The first operator, those in bodies included, that the library would compute otherwise; None if none is
    known. The refusal names the node of the group that it is in.
    """
    for node in subgraph.nodes:
        for op in _within(subgraph.graph, [node]):
            if not op.node.domain and (reason := fault(op)) is not None:
                return Refusal(f"{library} {reason}", node.name)
    return None


def _within(graph: Graph, nodes: Iterable[Node]) -> Iterator[Operator]:
    for node in nodes:
        yield Operator(graph, node)
        for body in bodies_of(node).values():
            whole = closed(graph, node, body, {})
            yield from _within(whole, whole.nodes)


def _is_about_images(subgraph: Subgraph) -> bool:
    graph = subgraph.graph
    before = [p for v in subgraph.inputs if (p := graph.producer(v)) is not None]
    after = [n for v in subgraph.outputs for n in graph.consumers(v)]
    return any(n.op_type in _IMAGE_OPS and not n.domain for n in (*subgraph.nodes, *before, *after))


def _as_image(graph: Graph, value: str) -> Format:
    dtype, shape = graph.type_of(value).dtype, graph.shape_of(value)
    is_image = dtype == "float32" and len(shape) in _IMAGE_RANKS
    return channels_last(dtype, shape) if is_image else graph.plain_format(value)


class BufferedPeerSession(PeerSession):
    """One model and its buffers, row-major and 64-byte aligned, which `run` reads and writes in place.

    bind: from the buffers of `inputs` and `outputs`, by name and in their order, a call that runs the model
    on them. Inputs hold zeros until they are set.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorType],
        outputs: Mapping[str, TensorType],
        bind: Callable[[Mapping[str, Array], Mapping[str, Array]], Bound],
    ) -> None:
        self._made_of = inputs, outputs, bind
        self._inputs, self._outputs = _buffers(inputs), _buffers(outputs)
        for array in self._inputs.values():
            array.fill(0)
        self._run = bind(self._inputs, self._outputs)

    def another(self) -> BufferedPeerSession:
        """One more of the same model, on buffers of its own; the two may run beside each other if the library
        allows it.
        """
        return BufferedPeerSession(*self._made_of)

    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        """InputError unless they are just the model's, of its dtypes and shapes."""
        if set(inputs) != set(self._inputs):
            raise InputError(f"inputs must be {sorted(self._inputs)}, not {sorted(inputs)}")
        for name, buffer in self._inputs.items():
            given = np.asarray(inputs[name])
            if (given.dtype, given.shape) != (buffer.dtype, buffer.shape):
                raise InputError(
                    f"input {name!r} must be {buffer.dtype}{list(buffer.shape)}, "
                    f"not {given.dtype}{list(given.shape)}"
                )
            np.copyto(buffer, given)

    def run(self) -> None:
        """BackendError for an error code; whatever else the library raises."""
        if status := self._run():
            raise BackendError(f"the model failed with status {status}")

    def outputs(self) -> dict[str, Array]:
        return {name: buffer.copy() for name, buffer in self._outputs.items()}


def _buffers(types: Mapping[str, TensorType]) -> dict[str, Array]:
    return {n: empty(t.static_shape, plain(t.dtype, t.static_shape)) for n, t in types.items()}
