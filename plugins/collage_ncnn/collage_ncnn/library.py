"""ncnn through its Python binding: the one module that touches the library."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from collage_run.errors import BackendError, BackendUnavailableError
from collage_run.formats import Array
from collage_run.image import OPENMP
from collage_run.shared_library import once

from collage_ncnn.convolution import TILES, Convolution, Image

__all__ = ["DISTRIBUTION", "Blob", "Layer", "Library", "load"]

DISTRIBUTION = "ncnn"

Blob = Any
"""An `ncnn.Mat` on memory that somebody else keeps."""

_HEADER = "7767517\n2 2\n"
_NOT_FLOAT32 = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
    "use_vulkan_compute",
)
_EQUAL = -233
"""A slice as wide as the others."""
_WIDTH = 2
"""The axis of an image's width, for layers that slice and concatenate."""
_DIMS_OF_RESULTS = 4
"""With so many dimensions such a layer takes a result's memory as it is; with fewer it makes a new one."""
_PACKS = (16, 8, 4)
"""How many channels ncnn puts beside each other: as many as the processor's registers hold, and divide their
number.
"""


@once
def load() -> Library:
    """The library, loaded once per process. BackendUnavailableError where that fails."""
    # ncnn's wheel brings an OpenMP runtime of its own, whose threads would spin beside those of other
    # libraries. Where the system's is loaded for all to see, ncnn's calls go there: one pool for everybody.
    with suppress(OSError):  # where there is none, nobody else uses it
        ctypes.CDLL(OPENMP, ctypes.RTLD_GLOBAL)
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
        self.version = str(ncnn.__version__)
        self._width = self._channels_together()
        self._copiers: dict[tuple[str, int, int], Callable[[list[Blob], list[Blob]], int]] = {}

    def pack(self, channels: int) -> int:
        """How many channels of an image ncnn puts beside each other, innermost: [channels / pack, height,
        width, pack]. `channels` is a multiple of 4.
        """
        return next(p for p in _PACKS if p <= self._width and channels % p == 0)

    def blob(self, view: Array, dims: int = 3) -> Blob:
        """What lies at a view [c, h, w, pack] (float32, kept by the caller), of which each [h, w, pack] lies
        together.
        """
        blob = self._ncnn.Mat(np.lib.stride_tricks.as_strided(view, (1,), (view.itemsize,)))
        blob.dims, (blob.c, blob.h, blob.w, blob.elempack), blob.d = dims, view.shape, 1
        blob.elemsize = view.itemsize * blob.elempack
        blob.cstep = view.strides[0] // blob.elemsize
        return blob

    def repack(self, source: Blob, destination: Blob, pack: int, threads: int) -> Callable[[], object]:
        """What copies one blob to another, of which each holds `pack` channels together."""
        option, convert = self._option(self._ncnn.Option(), threads, ""), self._ncnn.convert_packing
        return lambda: convert(source, destination, pack, option)

    def split(self, together: Array, apart: Array, threads: int) -> Callable[[], int]:
        """What copies [height, width, channels] to ncnn's order, [channels / pack, height, width, pack], each
        thread some of the rows. Both are float32, and kept by the caller.
        """
        layer = self._copier("Slice", len(apart), threads)
        rows, blocks = self._rows(together, apart), self._blocks(apart, _DIMS_OF_RESULTS)
        return lambda: layer([rows], blocks)

    def join(self, apart: Array, together: Array, threads: int) -> Callable[[], int]:
        """The way back."""
        layer = self._copier("Concat", len(apart), threads)
        rows, blocks = self._rows(together, apart, _DIMS_OF_RESULTS), self._blocks(apart)
        return lambda: layer(blocks, [rows])

    def _rows(self, together: Array, apart: Array, dims: int = 3) -> Blob:
        return self.blob(together.reshape(*together.shape[:2], len(apart), -1), dims)

    def _blocks(self, apart: Array, dims: int = 3) -> list[Blob]:
        return [self.blob(block[:, :, np.newaxis], dims) for block in apart]

    def _copier(self, kind: str, blocks: int, threads: int) -> Callable[[list[Blob], list[Blob]], int]:
        """A layer that slices a width into as many equal ones, or concatenates them; made once."""
        key = kind, blocks, threads
        if key not in self._copiers:
            layer, parameters = self._ncnn.create_layer(kind), self._ncnn.ParamDict()
            if kind == "Slice":
                # A copy: the layer keeps it, and does not keep others' memory from being freed.
                parameters.set(0, self._ncnn.Mat(np.full(blocks, _EQUAL, np.int32)).clone())
            parameters.set(int(kind == "Slice"), _WIDTH)
            option = self._option(self._ncnn.Option(), threads, "")
            if layer.load_param(parameters) or layer.create_pipeline(option):
                raise BackendError(f"ncnn cannot make its layer {kind}")
            self._copiers[key] = lambda given, wanted: int(layer.forward(given, wanted, option))
        return self._copiers[key]

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
        5: int(convolution.has_bias),
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
