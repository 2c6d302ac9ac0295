"""ONNX Runtime's own tool for static quantisation."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import onnx

from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.peer import PeerInfo
from collage_core.quantizer import Quantizer
from collage_onnxruntime.peer import info_with

__all__ = ["OnnxRuntimeQuantizer"]

_LARGE_BYTES = 1 << 30
"""Models from there on keep their weights in a file beside them: protobuf holds 2 GiB."""


class OnnxRuntimeQuantizer(Quantizer):
    """QDQ form: activations as uint8, each with a scale and a zero point from the least and the most that
    were seen; weights as int8, symmetric, with a scale for each output channel.
    """

    name = "onnxruntime"

    def info(self) -> PeerInfo:
        settings = {
            "format": "QDQ",
            "activations": "uint8",
            "weights": "int8, per channel",
            "range": "min-max",
        }
        return info_with(self.name, settings)

    def quantise(
        self, model: Path, samples: Sequence[Mapping[str, Array]], excluded: Collection[str], output: Path
    ) -> None:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        prepared = onnx.load(model, load_external_data=False)
        for node in prepared.graph.node:
            if node.op_type == "Sum" and not node.domain and len(node.input) == 2:
                node.op_type = "Add"  # which the tool knows, and not the other name
        onnx.save(prepared, model)
        logging.disable(logging.WARNING)  # it advises what has been done already
        try:
            quantize_static(
                model,
                output,
                _Samples(samples),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=[*excluded, *_cutting_off(prepared)],
                use_external_data_format=_size_bytes(model) > _LARGE_BYTES,
                calibrate_method=CalibrationMethod.MinMax,
            )
        except Exception as error:  # it raises whatever it meets
            said = " ".join(str(error).split())
            raise BackendError(f"onnxruntime: {type(error).__name__}: {said}") from error
        finally:
            logging.disable(logging.NOTSET)


def _cutting_off(model: onnx.ModelProto) -> list[str]:
    """Nodes that the tool would put into the range of what they read, which the model returns as well."""
    returned = {v.name for v in model.graph.output}
    return [n.name for n in model.graph.node if n.op_type in ("Clip", "Relu") and n.input[0] in returned]


class _Samples:
    """As the library's CalibrationDataReader."""

    def __init__(self, samples: Sequence[Mapping[str, Array]]) -> None:
        self._left: Iterator[Mapping[str, Array]] = iter(samples)

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self._left, None)


def _size_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in model.parent.iterdir())
