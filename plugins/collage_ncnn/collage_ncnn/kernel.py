"""A convolution as a kernel: weights packed, images bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from collage_run.devices import Queue
from collage_run.errors import BackendUnavailableError
from collage_run.formats import Array
from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_ncnn.convolution import Activation, Convolution, Image
from collage_ncnn.library import Library, load

__all__ = ["ConvolutionKernel", "Settings", "restore"]

_ALIGNMENT = 64
_BEYOND = 64
"""Bytes that the library may read beyond the end of an image (its NCNN_MALLOC_OVERREAD)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a convolution is computed. is_plain: of row-major images, not of channels-last ones. tile: of
    Winograd's algorithm; "" for none. rows: of the result, so many at a time; 0 for all.
    """

    convolution: Convolution
    is_plain: bool
    tile: str
    rows: int
    threads: int


_KIND = "ncnn"


def restore(stored: StoredKernel) -> ConvolutionKernel:
    """The same again; the library packs the weights. BackendUnavailableError where it is not here, or in
    another version.
    """
    library, facts = load(), dict(stored.facts)
    if (version := facts.pop("version")) != library.version:
        raise BackendUnavailableError(f"made for ncnn {version}; here it is {library.version}")
    told = facts.pop("convolution")
    images: dict[str, Any] = {name: Image(**told.pop(name)) for name in ("input", "output")}
    activation = told.pop("activation")
    numbers = Activation(activation["number"], tuple(activation["parameters"]))
    pairs: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    settings = Settings(Convolution(**images, **pairs, activation=numbers), **facts)
    weights, *bias = stored.arrays
    return ConvolutionKernel(library, settings, weights, bias[0] if bias else None)


class ConvolutionKernel(Kernel):
    """One convolution. The library wants some channels innermost: images are copied to the workspace in that
    order, and results from there.

    Channels-last images get their zeros around them on the way, and may be computed in horizontal strips:
    what is copied, transformed and multiplied of one of them stays in the cores' own caches from step to
    step, where that of a whole image would not.
    """

    def __init__(self, library: Library, settings: Settings, weights: Array, bias: Array | None) -> None:
        self._library, self._settings = library, settings
        self._convolution, self._threads = settings.convolution, settings.threads
        padded = self._convolution if settings.is_plain else _padded(self._convolution)
        self._source = padded.input
        self._layer = library.convolution(padded, weights, bias, settings.tile, self._threads)
        self._rows = settings.rows or self._convolution.output.height
        self._split = _room(self._source)
        self.workspace_bytes = self._split + _room(replace(self._convolution.output, height=self._rows))

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        before, after = (
            part.view(np.float32) for part in (workspace[: self._split], workspace[self._split :])
        )
        steps: list[Bound] = []
        for given, wanted in zip(inputs[0], outputs[0], strict=True):
            image = self._plain_image if self._settings.is_plain else self._image
            steps += image(given, wanted, before, after)
        return partial(_run, tuple(steps), (self, inputs[0], outputs[0], workspace))

    def stored_with(self, constants: Sequence[Array]) -> StoredKernel:
        """What `restore` makes the same of. Weights and bias are the library's by now, in its own order."""
        facts = {**asdict(self._settings), "version": self._library.version}
        return StoredKernel(_KIND, facts, arrays=tuple(constants))

    def _plain_image(self, given: Array, wanted: Array, before: Array, after: Array) -> Iterator[Bound]:
        """What convolves one image [channels, height, width] that lies so in memory, step by step."""
        library, threads = self._library, self._threads
        packed, result = self._packed(before, self._source), self._packed(after, self._convolution.output)
        source, convolved = library.blob(packed), library.blob(result)
        yield library.repack(library.blob(given[..., np.newaxis]), source, packed.shape[3], threads)
        yield self._layer.bind(source, convolved)
        yield library.repack(convolved, library.blob(wanted[..., np.newaxis]), 1, threads)

    def _image(self, given: Array, wanted: Array, before: Array, after: Array) -> Iterator[Bound]:
        """The same of one with its channels last in memory."""
        library, convolution, threads = self._library, self._convolution, self._threads
        given, wanted = given.transpose(1, 2, 0), wanted.transpose(1, 2, 0)
        framed = self._packed(before, self._source)
        (top, left), (height, width) = convolution.begin, given.shape[:2]
        bottom, right = top + height, left + width
        for border in (framed[:, :top], framed[:, bottom:], framed[:, :, :left], framed[:, :, right:]):
            if border.size:  # others use the workspace, too
                yield partial(border.fill, 0.0)
        inside = framed[:, top:bottom, left:right]
        stride, reach = convolution.strides[0], (convolution.kernel[0] - 1) * convolution.dilations[0] + 1
        there = 0
        for first in range(0, len(wanted), self._rows):
            result = wanted[first : first + self._rows]
            end = (first + len(result) - 1) * stride + reach
            until = min(max(end - top, there), height)
            if until > there:
                yield library.split(given[there:until], inside[:, there:until], threads)
            there = until
            strip = self._packed(after, replace(convolution.output, height=len(result)))
            yield self._layer.bind(library.blob(framed[:, first * stride : end]), library.blob(strip))
            yield library.join(strip, result, threads)

    def _packed(self, memory: Array, image: Image) -> Array:
        """An image in the library's order, [channels / pack, height, width, pack], at the begin."""
        pack = self._library.pack(image.channels)
        return memory[: image.elements].reshape(-1, image.height, image.width, pack)


def _padded(convolution: Convolution) -> Convolution:
    """The same of an image that is padded already."""
    (top, left), (bottom, right), image = convolution.begin, convolution.end, convolution.input
    framed = Image(image.channels, top + image.height + bottom, left + image.width + right)
    return replace(convolution, input=framed, begin=(0, 0), end=(0, 0))


def _room(image: Image) -> int:
    """Bytes of an image in the library's order."""
    return math.ceil((image.elements * 4 + _BEYOND) / _ALIGNMENT) * _ALIGNMENT


def _run(steps: Sequence[Bound], keep: object) -> object:
    """The first status that is no success; None for success. keep: what the steps use."""
    for step in steps:
        if status := step():
            return status
    return None
