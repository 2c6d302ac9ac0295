"""ncnn through its Python binding: the one module that touches the library."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from collage_core.errors import BackendError, BackendUnavailableError
from collage_core.formats import Array
from collage_ncnn.convolution import TILES, Convolution, Image

__all__ = ["DISTRIBUTION", "Blob", "Layer", "Library", "load"]

DISTRIBUTION = "ncnn"

Blob = Any
"""An `ncnn.Mat` on memory that somebody else keeps."""

_OPENMP = "libgomp.so.1"
_HEADER = "7767517\n2 2\n"
_NOT_FLOAT32 = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
    "use_vulkan_compute",
)
_PACKS = (16, 8, 4)
"""How many channels ncnn puts beside each other: as many as the processor's registers hold, and divide their
number.
"""


@cache
def load() -> Library:
    """The library, loaded once per process. BackendUnavailableError where that fails."""
    # ncnn's wheel brings an OpenMP runtime of its own, whose threads would spin beside those of other
    # libraries. Where the system's is loaded for all to see, ncnn's calls go there: one pool for everybody.
    with suppress(OSError):  # where there is none, nobody else uses it
        ctypes.CDLL(_OPENMP, ctypes.RTLD_GLOBAL)
    try:
        import ncnn
    except ImportError as error:
        raise BackendUnavailableError(f"ncnn cannot be loaded: {error}") from error
    return Library(ncnn)


class Library:
    """What the binding offers, as far as it is needed."""

    def __init__(self, ncnn: ModuleType) -> None:
        self._ncnn = ncnn
        # One for all kernels of a process: each finds in the caches what the last one used.
        self._scratch = ncnn.PoolAllocator()
        self._width = self._channels_together()

    def pack(self, channels: int) -> int:
        """How many channels of an image ncnn puts beside each other, innermost: [channels / pack, height,
        width, pack]. `channels` is a multiple of 4.
        """
        return next(p for p in _PACKS if p <= self._width and channels % p == 0)

    def blob(self, memory: Array, image: Image, pack: int) -> Blob:
        """`memory` (float32, 1-D, 64-byte aligned, kept by the caller) as one image in that order."""
        blob = self._ncnn.Mat(memory)
        blob.dims, blob.w, blob.h, blob.d, blob.c = 3, image.width, image.height, 1, image.channels // pack
        blob.elempack, blob.elemsize, blob.cstep = pack, memory.itemsize * pack, image.width * image.height
        return blob

    def repack(self, source: Blob, destination: Blob, pack: int, threads: int) -> Callable[[], object]:
        """What copies one blob to another, of which each holds `pack` channels together."""
        option, convert = self._option(self._ncnn.Option(), threads, ""), self._ncnn.convert_packing
        return lambda: convert(source, destination, pack, option)

    def convolution(
        self, convolution: Convolution, weights: Array, bias: Array | None, tile: str, threads: int
    ) -> Layer:
        """The convolution, its weights packed. tile: of Winograd's algorithm; "" for none. BackendError if
        the library declines.
        """
        net = self._ncnn.Net()
        self._option(net.opt, threads, tile)
        with tempfile.TemporaryDirectory(prefix="collage-ncnn-") as folder:
            path = Path(folder, "weights.bin")
            with path.open("wb") as file:
                file.write(bytes(4))  # the weights' type: float32
                for array in filter(lambda a: a is not None, (weights, bias)):
                    file.write(np.ascontiguousarray(array, np.float32).data)
            if net.load_param_mem(_description(convolution)) or net.load_model(str(path)):
                raise BackendError("ncnn cannot build the convolution")
        option = self._option(self._ncnn.Option(), threads, tile)
        option.workspace_allocator = self._scratch
        return Layer(net, option)

    def _option(self, option: Any, threads: int, tile: str) -> Any:
        """Exact fp32 on `threads` threads."""
        option.num_threads = threads
        for name in _NOT_FLOAT32:
            setattr(option, name, False)
        option.use_winograd_convolution = bool(tile)
        for size in TILES:
            setattr(option, f"use_winograd{size}3_convolution", size == tile)
        return option

    def _channels_together(self) -> int:
        """As many as the processor's registers hold: it is the library that knows which it uses."""
        net = self._ncnn.Net()
        self._option(net.opt, 1, "")
        failed = net.load_param_mem(f"{_HEADER}Input x 0 1 x\nReLU y 1 1 x y\n")
        failed = failed or net.load_model(self._ncnn.DataReaderFromEmpty())
        # A copy: what works in place looks at the references to its input, and others' memory has none.
        image = self._ncnn.Mat(np.zeros((_PACKS[0], 1, 1), np.float32)).clone()
        extractor = net.create_extractor()
        failed = failed or extractor.input("x", image)
        if not failed:
            failed, blob = extractor.extract("y", 1)
        if failed or blob.elempack not in _PACKS:
            raise BackendUnavailableError("ncnn does not say how it lays out channels")
        return int(blob.elempack)


class Layer:
    """A built convolution. Calls from several threads take turns: the binding keeps Python's lock."""

    def __init__(self, net: Any, option: Any) -> None:
        self._net, self._layer, self._option = net, net.layers()[1], option

    def bind(self, source: Blob, destination: Blob) -> Callable[[], int]:
        """What convolves one blob into another; it returns ncnn's status, 0 for success. Both have the
        library's own order of channels.
        """
        forward, option = self._layer.forward, self._option
        return lambda: int(forward(source, destination, option))


def _description(convolution: Convolution) -> str:
    """The convolution in ncnn's text format: numbers of its parameters and their values."""
    grouped = convolution.groups > 1
    (height, width), (top, left), (bottom, right) = convolution.kernel, convolution.begin, convolution.end
    parameters: dict[int, object] = {
        0: convolution.output.channels,
        1: width,
        11: height,
        2: convolution.dilations[1],
        12: convolution.dilations[0],
        3: convolution.strides[1],
        13: convolution.strides[0],
        4: left,
        14: top,
        15: right,
        16: bottom,
        5: int(bool(convolution.bias)),
        6: convolution.output.channels * convolution.input.channels // convolution.groups * height * width,
        9: convolution.activation.number,
    }
    if grouped:
        parameters[7] = convolution.groups
    if convolution.activation.parameters:
        parameters[-23310] = _array([f"{p:.8e}" for p in convolution.activation.parameters])
    kind = "ConvolutionDepthWise" if grouped else "Convolution"
    text = " ".join(f"{k}={v}" for k, v in parameters.items())
    return (
        f"{_HEADER}Input x 0 1 x {_shape(convolution.input)}\n"
        f"{kind} y 1 1 x y {_shape(convolution.output)} {text}\n"
    )


def _shape(image: Image) -> str:
    """What tells the library a value's shape, by which it chooses tiles."""
    return f"-23330={_array([3, image.width, image.height, image.channels])}"


def _array(values: Sequence[object]) -> str:
    return ",".join(map(str, (len(values), *values)))
