"""A convolution as a kernel: weights packed, images bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from collage_core.backend import Bound, Kernel, Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_ncnn.convolution import Image, parse
from collage_ncnn.library import Blob, Library
from collage_ncnn.variants import tile

__all__ = ["ConvolutionKernel"]

_ALIGNMENT = 64
_BEYOND = 64
"""Bytes that the library may read beyond the end of an image (its NCNN_MALLOC_OVERREAD)."""


class ConvolutionKernel(Kernel):
    """One convolution. The library wants some channels innermost: images are copied to the workspace in that
    order before, and results from there after.
    """

    def __init__(self, library: Library, subgraph: Subgraph, variant: Variant, threads: int) -> None:
        convolution = parse(subgraph)
        if isinstance(convolution, Refusal):
            raise BackendError(str(convolution))
        self._library, self._convolution, self._threads = library, convolution, threads
        constants = subgraph.graph.constants
        bias = constants[convolution.bias] if convolution.bias else None
        self._layer = library.convolution(
            convolution, constants[convolution.weights], bias, tile(variant), threads
        )
        self._is_plain = variant.inputs[0].is_plain, variant.outputs[0].is_plain
        self._packs = library.pack(convolution.input.channels), library.pack(convolution.output.channels)
        self._split = _room(convolution.input)
        self.workspace_bytes = self._split + _room(convolution.output)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array) -> Bound:
        convolution, (pack_in, pack_out) = self._convolution, self._packs
        before, after = workspace[: self._split], workspace[self._split :]
        steps: list[Bound] = []
        for given, wanted in zip(inputs[0], outputs[0], strict=True):
            source, read, _ = self._packed(given, convolution.input, pack_in, before, self._is_plain[0])
            result, _, write = self._packed(wanted, convolution.output, pack_out, after, self._is_plain[1])
            steps += [read, self._layer.bind(source, result), write]
        return partial(_run, tuple(steps), (self, inputs[0], outputs[0], workspace))

    def _packed(
        self, array: Array, image: Image, pack: int, room: Array, is_plain: bool
    ) -> tuple[Blob, Bound, Bound]:
        """An image [C, H, W] as the library reads and writes it, in `room`; what copies it there, and what
        copies it back.
        """
        library, pixels = self._library, image.height * image.width
        memory = room[: image.elements * 4].view(np.float32)
        blob = library.blob(memory, image, pack)
        if is_plain:
            plain = library.blob(array.reshape(-1), image, 1)
            there = library.repack(plain, blob, pack, self._threads)
            return blob, there, library.repack(blob, plain, 1, self._threads)
        # As many channels as lie together are one element, and copied as such.
        together = np.dtype((np.void, 4 * pack))
        last = array.transpose(1, 2, 0).reshape(pixels, image.channels).view(together).T
        mine = memory.reshape(-1, pixels * pack).view(together)
        return blob, partial(np.copyto, mine, last), partial(np.copyto, last, mine)


def _room(image: Image) -> int:
    """Bytes of an image in the library's order."""
    return math.ceil((image.elements * 4 + _BEYOND) / _ALIGNMENT) * _ALIGNMENT


def _run(steps: Sequence[Bound], keep: object) -> object:
    """The first status that is no success; None for success. keep: what the steps use."""
    for step in steps:
        if status := step():
            return status
    return None
