"""Collage as a backend of `onnx.backend.base`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend as _Backend

from collage_core.errors import BackendError, CollageError, InputError
from collage_core.formats import Array
from collage_core.ir import TensorType, to_value_info
from collage_core.onnx_backend.home import Key, close_homes, home_of
from collage_core.onnx_backend.prepared import PreparedModel
from collage_core.plugins import Registry, default_registry
from collage_core.runtime import Inputs
from collage_core.target import Target

__all__ = ["OnnxBackend"]


class OnnxBackend(_Backend):
    """Runs ONNX models on the backends installed here, in a worker process, without measuring anything.

    Each operator that a backend takes goes to it: to the first in the order of `backends`, where several do,
    and the reference runs what nobody takes. `for_backends` makes a class for some of them.
    """

    backends: ClassVar[tuple[str, ...] | None] = None
    """Names of those that may take part besides the reference, the first preferred; None: all available."""
    registry: ClassVar[Registry | None] = None
    """Where they are found; None: among the installed packages."""

    @classmethod
    def for_backends(cls, *names: str, registry: Registry | None = None) -> type[OnnxBackend]:
        """This class, for the backends named and core's reference alone."""
        found = cls.registry if registry is None else registry
        members = {"backends": names, "registry": found, "__doc__": cls.__doc__, "__module__": cls.__module__}
        return type("_".join((cls.__name__, *names)), (cls,), members)

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        threads: int | None = None,
        accelerators: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> PreparedModel:
        """Read, normalise and place a model, and build it where its input shapes are static.

        threads: of all libraries; as many as this process may use where None. accelerators: names of devices
        that may take part beside the CPU, where inputs and outputs lie. Other keywords, which other backends
        may know, change nothing.

        ModelError for what ONNX forbids or Collage does not run; CollageError for an unknown accelerator.
        """
        if not cls.supports_device(device):
            raise BackendError(f"device {device!r} is not supported; this version runs on 'CPU'")
        target = Target.default() if threads is None else Target("cpu", threads)
        target = replace(target, accelerators=accelerators)
        return PreparedModel(model, home_of(cls._key(), target))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Inputs, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """`prepare` and `PreparedModel.run` in one call."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Array],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on `inputs`, one for each that it names.

        outputs_info: dtype and shape of each output, where ONNX cannot infer them. opset_version: ONNX's
        newest, if not given.
        """
        _Backend.run_node(node, inputs, device, outputs_info, **kwargs)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        return cls.run_model(_model_of(node, inputs, outputs_info, version), inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether it is the CPU, as ONNX writes it: "CPU" or "CPU:0"."""
        return device.split(":")[0].upper() == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `prepare` takes the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except CollageError:
            return False
        return True

    @classmethod
    def close(cls) -> None:
        """End this class's workers; its prepared models start another when they run again."""
        close_homes(cls._key())

    @classmethod
    def _key(cls) -> Key:
        return cls.backends, default_registry() if cls.registry is None else cls.registry


def _model_of(
    node: onnx.NodeProto,
    inputs: Sequence[Array],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    version: int,
) -> onnx.ModelProto:
    names = [v for v in node.input if v]
    if len(names) != len(inputs):
        raise InputError(f"{len(inputs)} inputs given; the node reads {len(names)}: {', '.join(names)}")
    given = {v: np.asarray(a) for v, a in zip(names, inputs, strict=True)}
    types = [TensorType(np.dtype(d).name, tuple(s)) for d, s in outputs_info or ()]
    outputs = [v for v in node.output if v]
    graph = helper.make_graph(
        [node],
        node.name or node.op_type,
        [to_value_info(v, TensorType(a.dtype.name, a.shape)) for v, a in given.items()],
        [to_value_info(v, t) for v, t in zip(outputs, types, strict=True)]
        if types
        else [onnx.ValueInfoProto(name=v) for v in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
