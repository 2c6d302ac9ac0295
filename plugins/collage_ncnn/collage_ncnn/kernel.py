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


class ConvolutionKernel(Kernel):
    """One convolution. An image that does not lie as the library wants it, some channels innermost, is copied
    to the workspace before, or from there after.
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
        images = (convolution.input, convolution.output)
        needed = [
            self._room(i, p, is_plain)
            for i, p, is_plain in zip(images, self._packs, self._is_plain, strict=True)
        ]
        self._split = needed[0]
        self.workspace_bytes = sum(needed)

    @staticmethod
    def _room(image: Image, pack: int, is_plain: bool) -> int:
        """Bytes of an image in the library's order, where it does not lie so already."""
        if is_plain and pack == 1:
            return 0
        return math.ceil(image.elements * 4 / _ALIGNMENT) * _ALIGNMENT

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array) -> Bound:
        convolution, (pack_in, pack_out) = self._convolution, self._packs
        before, after = workspace[: self._split], workspace[self._split :]
        steps: list[Bound] = []
        for given, wanted in zip(inputs[0], outputs[0], strict=True):
            source, reads = self._packed(given, convolution.input, pack_in, before, self._is_plain[0])
            result, writes = self._packed(wanted, convolution.output, pack_out, after, self._is_plain[1])
            steps += [r[0] for r in reads]
            steps.append(self._layer.bind(source, result))
            steps += [w[1] for w in writes]
        return partial(_run, tuple(steps), (inputs[0], outputs[0], workspace))

    def _packed(
        self, array: Array, image: Image, pack: int, room: Array, is_plain: bool
    ) -> tuple[Blob, list[tuple[Bound, Bound]]]:
        """One image [C, H, W] as the library reads and writes it; and, where that is in `room`, what copies
        the image there and back.
        """
        library, pixels = self._library, image.height * image.width
        if is_plain and pack == 1:
            return library.blob(array.reshape(-1), image, 1), []
        memory = room[: image.elements * 4].view(np.float32)
        blob = library.blob(memory, image, pack)
        if is_plain:
            plain = library.blob(array.reshape(-1), image, 1)
            there = library.repack(plain, blob, pack, self._threads)
            return blob, [(there, library.repack(blob, plain, 1, self._threads))]
        # As many channels as lie together are one element: copied as such, four times as fast as one by one.
        together = np.dtype((np.void, 4 * pack))
        last = array.transpose(1, 2, 0).reshape(pixels, image.channels).view(together).T
        mine = memory.reshape(-1, pixels * pack).view(together)
        return blob, [(partial(np.copyto, mine, last), partial(np.copyto, last, mine))]


def _run(steps: Sequence[Bound], keep: object) -> object:
    """The first status that is no success; None for success. keep: what the steps read and write."""
    for step in steps:
        if status := step():
            return status
    return None
