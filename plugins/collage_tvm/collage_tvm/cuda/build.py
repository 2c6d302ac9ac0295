"""From a subgraph and a variant to functions in CUDA C++, and to a kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage_core.backend import Kernel, Variant
from collage_core.errors import BackendError
from collage_core.folders import user_folder
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_tvm.cuda.contraction import sums_of
from collage_tvm.cuda.direct import direct_launch
from collage_tvm.cuda.launch import Launch
from collage_tvm.cuda.parameters import CudaParameters
from collage_tvm.cuda.pointwise import pointwise_launch
from collage_tvm.cuda.rows import row_launch
from collage_tvm.cuda.scan import scan_launch
from collage_tvm.cuda.source import cuda_source, cuda_target, entry_of
from collage_tvm.cuda.thin import is_thin, thin_launch
from collage_tvm.cuda.tiles import tiled_launch
from collage_tvm.cuda.turned import turned_launch
from collage_tvm.objects import ObjectCache
from collage_tvm.output import Output
from collage_tvm.parameters import lowered
from collage_tvm.reductions import contraction_of, reductions_of

__all__ = ["Program", "build_conversion", "build_kernel", "compile_ahead", "conversion_program", "program"]

_MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class Program:
    """Functions that are launched one after the other, each over all buffers: inputs, constants, outputs.

    shapes: blocks, parts and threads of each. constants: what makes those that the kernel holds.
    """

    source: str
    architecture: str
    shapes: Sequence[tuple[int, int, int]]
    constants: Sequence[Callable[[], Array]]

    @property
    def entries(self) -> list[str]:
        return [entry_of(k) for k in range(len(self.shapes))]

    def compiled(self) -> bytes:
        """The cubin; kept on disk under the text that it is compiled from."""
        from collage_tvm.cuda import compiler

        objects, key = _objects(_folder()), self._key(compiler.version())
        data = objects.get(key)
        if data is None:
            data = compiler.compile_source(self.source, self.architecture)
            objects.put(key, data)
        return data

    def compile_ahead(self) -> None:
        """Make sure that `compiled` finds it; if another process is just at it, leave it to that one."""
        from collage_tvm.cuda import compiler

        objects, key = _objects(_folder()), self._key(compiler.version())
        with objects.claimed(key) as claimed:
            if claimed and objects.get(key) is None:
                objects.put(key, compiler.compile_source(self.source, self.architecture))

    def _key(self, version: str) -> str:
        return hashlib.sha256(f"{version} {self.architecture}\n{self.source}".encode()).hexdigest()


def _folder() -> Path:
    return user_folder() / "tvm" / "cubins"


@cache
def _objects(folder: Path) -> ObjectCache:
    return ObjectCache(folder)


def program(subgraph: Subgraph, variant: Variant, architecture: str) -> Program:
    """architecture: as in "sm_90". BackendError where the group has no schedule, or TVM cannot write it."""
    parameters = CudaParameters()
    with cuda_target(architecture):
        values = lowered(subgraph, variant, parameters)
        formats = zip(subgraph.outputs, variant.outputs, strict=True)
        outputs = [parameters.output(values[v], f) for v, f in formats]
        return _program(parameters, outputs, architecture)


def conversion_program(type: TensorType, source: Format, destination: Format, architecture: str) -> Program:
    """Of a copy into another layout, or rounded, or no more so."""
    parameters = CudaParameters()
    with cuda_target(architecture):
        output = parameters.output(parameters.input("x", type.static_shape, source), destination)
        return _program(parameters, [output], architecture)


def _program(parameters: CudaParameters, outputs: Sequence[Output], architecture: str) -> Program:
    launches = _launches(parameters, outputs)
    if any(launch.blocks > _MOST_BLOCKS for launch in launches):
        raise BackendError("the grid would have more blocks than CUDA counts")
    source = cuda_source(parameters.all(), launches, architecture)
    shapes = [(launch.blocks, launch.parts, launch.threads) for launch in launches]
    return Program(source, architecture, shapes, parameters.constants)


def _launches(parameters: CudaParameters, outputs: Sequence[Output]) -> list[Launch]:
    if not any(_is_more(output) for output in outputs):
        return [turned_launch(outputs) or pointwise_launch(outputs)]
    return [_launch(parameters, output) for output in outputs]


def _is_more(output: Output) -> bool:
    root = output.tensor
    return contraction_of(root) is not None or root.scan is not None or bool(reductions_of(root))


def _launch(parameters: CudaParameters, output: Output) -> Launch:
    if contraction_of(output.tensor) is not None:
        sums = sums_of(output, parameters.hold_made)
        if not sums.is_shared:
            return direct_launch(sums)
        return thin_launch(sums) if is_thin(sums) else tiled_launch(sums)
    if output.tensor.scan is not None:
        return scan_launch(output)
    return row_launch(output)


def build_kernel(subgraph: Subgraph, variant: Variant) -> Kernel:
    return _kernel(program(subgraph, variant, _architecture()))


def build_conversion(type: TensorType, source: Format, destination: Format) -> Kernel:
    return _kernel(conversion_program(type, source, destination, _architecture()))


def compile_ahead(subgraph: Subgraph, variant: Variant) -> None:
    program(subgraph, variant, _architecture()).compile_ahead()


def _kernel(made: Program) -> Kernel:
    from collage_tvm.cuda.kernel import CudaKernel

    return CudaKernel(made.compiled(), made.entries, made.shapes, [make() for make in made.constants])


def _architecture() -> str:
    from collage_cuda.device import DEVICE

    major, minor = DEVICE.compute_capability
    return f"sm_{major}{minor}"
