"""Kernels of the simulated device that do wrong, each in a way of its own. The functions run in the device's
process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from collage_simulator.backend import SimBackend
from collage_simulator.device import NAME
from collage_simulator.engine import Engine
from collage_simulator.operators import compute
from collage_simulator.plugin import collage_devices

from collage_core.backend import Backend, BackendInfo, BackendKind
from collage_core.ir import Node
from collage_core.plugins import hookimpl

__all__ = ["FAULTS", "collage_backends", "collage_devices"]

FAULTS = {
    "Neg": "late",
    "Abs": "outside",
    "Sqrt": "changing",
    "Exp": "wrong",
    "Tanh": "hanging",
    "Sigmoid": "dying",
    "Floor": "raising",
}
"""By operator, what its kernel does."""

_Arrays = Sequence[npt.NDArray[Any]]


def late(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    """Somewhere beside the queue."""

    def work() -> None:
        time.sleep(0.1)
        compute(engine, inputs, outputs, attributes)

    threading.Thread(target=work).start()


def outside(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    compute(engine, inputs, outputs, attributes)
    end = outputs[0].__array_interface__["data"][0] + outputs[0].nbytes
    for base, block in engine._blocks.items():
        first = block.__array_interface__["data"][0]
        if first <= end < first + block.nbytes:
            engine.block(base)[0][end - first] ^= 0xFF


def changing(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    compute(engine, inputs, outputs, attributes)
    inputs[0][...] = 7


def wrong(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    compute(engine, inputs, outputs, attributes)
    outputs[0][...] *= np.float32(1.5)


def hanging(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    time.sleep(3600)


def dying(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    os._exit(3)


def raising(engine: Engine, inputs: _Arrays, outputs: _Arrays, attributes: Mapping[str, Any]) -> None:
    raise ValueError("no such floor")


class _Faulty(SimBackend):
    name = "faulty"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", None, (NAME,))

    def _function(self, node: Node) -> str:
        fault = FAULTS.get(node.op_type)
        return super()._function(node) if fault is None else f"{__name__}:{fault}"


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [_Faulty()]
