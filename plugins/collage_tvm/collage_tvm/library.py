"""Compiling with TVM."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from collage_run import image
from collage_run.image import Image
from tvm import ir, tirx

from collage_core.folders import user_folder
from collage_core.target import Target
from collage_tvm import linking, openmp
from collage_tvm.host import tvm_target
from collage_tvm.linking import link
from collage_tvm.objects import ObjectCache
from collage_tvm.openmp import FILLED, runtime_object

__all__ = ["Function", "function_of"]

_CPU = 1
"""DLPack's kDLCPU."""
_ENTRY = "collage_kernel"
"""What the function of an object file is called."""


@dataclass(frozen=True)
class Function:
    """The function of a loop nest over buffers, which are given as pointers to their elements; not compiled
    yet.

    It is compiled once on this machine: what it becomes is kept under the text of the very function, in which
    everything is that the code has baked in, and of what compiles it. flat: whether all buffers, those that
    the nest allocates too, have one dimension. slp: see `tvm_target`.
    """

    code: Any
    parameters: int
    target: Target
    flat: bool
    slp: bool

    @cached_property
    def key(self) -> str:
        versions = f"{tvm.__version__} {tvm_ffi.__version__} {_lowering()} {self.flat} {self._compiled_for}"
        return hashlib.sha256(f"{versions}\n{ir.save_json(self.code)}".encode()).hexdigest()

    @property
    def _compiled_for(self) -> Any:
        return tvm_target(self.target.threads, self.slp)

    def compile_ahead(self) -> None:
        """Make sure that `compiled` finds it; if another process is just at it, leave it to that one."""
        objects = _objects(_folder())
        with objects.claimed(self.key) as claimed:
            if claimed and objects.get(self.key) is None:
                objects.put(self.key, self._image())

    def compiled(self, *, keep: bool = True) -> Image:
        """keep: whether it is worth keeping."""
        data = self._kept() if keep else self._image()
        return Image.from_bytes(data)

    def _kept(self) -> bytes:
        objects = _objects(_folder())
        data = objects.get(self.key)
        if data is None:
            data = self._image()
            objects.put(self.key, data)
        return data

    def _image(self) -> bytes:
        module = self._object()
        calls = any(variable.encode() in module for variable in FILLED)
        objects = [module, runtime_object(self.target.threads)] if calls else [module]
        return link(objects, _ENTRY, self.parameters, FILLED).to_bytes()

    def _object(self) -> bytes:
        """The object file."""
        module = tvm.IRModule({_ENTRY: self.code})
        compiled = tvm.compile(module, self._compiled_for, tir_pipeline=_pipeline(self.flat)).mod
        with tempfile.TemporaryDirectory(prefix="collage-tvm-") as folder:
            path = Path(folder, "kernel.o")
            compiled.write_to_file(str(path), "o")
            return path.read_bytes()


def function_of(
    parameters: Sequence[Any], body: Any, target: Target, *, flat: bool = True, slp: bool = True
) -> Function:
    """Of a loop nest over these buffers."""
    return Function(_over_pointers(parameters, body), len(parameters), target, flat, slp)


def _folder() -> Path:
    return user_folder() / "tvm" / "objects"


@cache
def _lowering() -> str:
    """Digest of what turns a loop nest into an image: of the passes here, and of what its code may call."""
    modules = (sys.modules[__name__], image, linking, openmp)
    sources = [Path(str(module.__file__)).read_bytes() for module in modules]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


@cache
def _objects(folder: Path) -> ObjectCache:
    return ObjectCache(folder)


def _over_pointers(parameters: Sequence[Any], body: Any) -> Any:
    """A function of C's calling convention: TVM's own would have every call unpack and check descriptors."""
    pointers = [tirx.Var(b.name, ir.PointerType(ir.PrimType(b.dtype))) for b in parameters]
    declared = [tirx.DeclBuffer(b, data=p) for b, p in zip(parameters, pointers, strict=True)]
    whole = tirx.SeqStmt([*declared, body, tirx.Return(tirx.const(0, "int32"))])
    for key, value in (("device_id", 0), ("device_type", _CPU)):
        whole = tirx.AttrStmt("default", key, tirx.const(value, "int32"), whole)  # where large buffers lie
    attributes = ir.make_node("ir.DictAttrs", **{"global_symbol": _ENTRY, "tirx.noalias": True})
    return tirx.PrimFunc(pointers, whole, ret_type=ir.PrimType("int32"), attrs=attributes)


@cache
def _pipeline(flat: bool) -> str:
    """The name of the passes that lower our loop nests.

    TVM's own lists begin with a simplifier that puts every variable's value in place of the variable. Nests
    written here keep what is used twice in variables, some of them twenty deep: their code would grow
    exponentially. Buffers that are flat are left as they are: TVM's flattening adds 0 to all lanes of a
    vector's index, so that the code generator no longer sees that they are neighbours, and takes the vector
    apart.
    """
    flattening = [] if flat else [tirx.transform.FlattenBuffer()]

    def lower(module: Any, context: Any) -> Any:
        passes = [
            tirx.transform.LowerTIRx(),
            tirx.transform.LowerTIRxOpaque(),
            *flattening,
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.VectorizeLoop(True),
            tirx.transform.UnrollLoop(),
            tirx.transform.VerifyMemory(),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.BF16StorageLegalize(),
        ]
        return tvm.ir.transform.Sequential(passes)(module)

    name = "collage" if flat else "collage_flattening"
    lowering = tvm.transform.module_pass(lower, opt_level=0)
    stages = tirx.compilation_pipeline
    stages.register_tir_pipeline(
        name, lambda: (lowering, stages.finalize_host_passes, stages.finalize_device_passes)
    )
    return name
