"""The networks by name, each with inputs that fit it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from collage_benchmarks.networks.bert import bert_encoder
from collage_benchmarks.networks.calibration import calibrate
from collage_benchmarks.networks.dcgan import dcgan_generator
from collage_benchmarks.networks.detector import detector
from collage_benchmarks.networks.light import LIGHT_NETWORKS, light_network
from collage_benchmarks.networks.mnist import mnist
from collage_benchmarks.networks.mobilenet import mobilenet_v2
from collage_benchmarks.networks.nasnet import nasnet_a
from collage_benchmarks.networks.resnet import resnet1001, resnext50
from collage_benchmarks.networks.tiny import tiny_conv, tiny_encoder
from collage_core.formats import Array

__all__ = ["NETWORKS", "Network", "add_networks"]

_CALIBRATION_SEED = 2022


@dataclass(frozen=True, slots=True)
class Network:
    """A model that can be built, and what to feed it.

    input_shapes: of its inputs by name. vocabularies: for inputs that are indices (int64), how many valid;
    all others are float32 and standard normal.
    """

    name: str
    summary: str
    builder: Callable[[], onnx.ModelProto]
    input_shapes: Mapping[str, tuple[int, ...]]
    vocabularies: Mapping[str, int]

    def build(self) -> onnx.ModelProto:
        """The model, its batch normalisations calibrated; the same at every call."""
        model = self.builder()
        if any(n.op_type == "BatchNormalization" for n in model.graph.node):
            calibrate(model, self.inputs(_CALIBRATION_SEED))
        return model

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Random inputs by name."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.integers(0, self.vocabularies[name], shape, np.int64)
            if name in self.vocabularies
            else rng.standard_normal(shape, np.float32)
            for name, shape in self.input_shapes.items()
        }


def _image(name: str, summary: str, builder: Callable[[], onnx.ModelProto], *shape: int) -> Network:
    return Network(name, summary, builder, {"image": shape}, {})


def _text(
    name: str, summary: str, builder: Callable[[], onnx.ModelProto], tokens: int, vocab: int
) -> Network:
    shapes = {"input_ids": (1, tokens), "token_type_ids": (1, tokens)}
    return Network(name, summary, builder, shapes, {"input_ids": vocab, "token_type_ids": 2})


def _light(name: str) -> Network:
    data = "data_0" if LIGHT_NETWORKS[name] in _DATA_0 else "gpu_0/data_0"
    summary = f"{LIGHT_NETWORKS[name]} of the onnx package, with weights"
    return Network(name, summary, partial(light_network, name), {data: (1, 3, 224, 224)}, {})


_DATA_0 = (
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_squeezenet",
    "light_vgg19",
)

NETWORKS: Mapping[str, Network] = {
    n.name: n
    for n in (
        _image("resnext50", "ResNeXt50-32x4d, batch 1, 224x224", resnext50, 1, 3, 224, 224),
        _text("bert_encoder", "BERT-base, 2 layers, 128 tokens, from ids", bert_encoder, 128, 30522),
        _text(
            "bert_base",
            "BERT-base, 12 layers, 128 tokens, from ids",
            partial(bert_encoder, layers=12),
            128,
            30522,
        ),
        Network(
            "dcgan",
            "the generator of DCGAN, one 64x64 image",
            dcgan_generator,
            {"latent": (1, 100, 1, 1)},
            {},
        ),
        _image("detector", "a one-stage detector of three scales, SiLU, 320x320", detector, 1, 3, 320, 320),
        _image("mobilenet_v2", "MobileNetV2, batch 1, 224x224", mobilenet_v2, 1, 3, 224, 224),
        _image("nasnet_a", "NASNet-A's normal cells, six of them, 56x56", nasnet_a, 1, 3, 56, 56),
        _image("resnet1001", "ResNet-1001, 3,339 nodes, batch 1, 32x32", resnet1001, 1, 3, 32, 32),
        _image("mnist", "the example of TVM's RFC 0062", mnist, 1, 1, 28, 28),
        _image("tiny_conv", "a residual block, for tests", tiny_conv, 1, 3, 16, 16),
        *map(_light, LIGHT_NETWORKS),
        _text("tiny_encoder", "one encoder layer, for tests", tiny_encoder, 16, 100),
    )
}


def add_networks(
    parser: argparse.ArgumentParser, name: str = "networks", *, nargs: str = "+", default: Sequence[str] = ()
) -> None:
    """The argument or option of that name, which has `default` where it is left out."""
    parser.add_argument(
        name,
        nargs=nargs,
        default=default,
        type=_named,  # not `choices`: with these argparse takes none for a mistake
        metavar="NETWORK",
        help=f"of {', '.join(NETWORKS)}" + (f" (default: {' '.join(default)})" if default else ""),
    )


def _named(text: str) -> str:
    if text not in NETWORKS:
        raise argparse.ArgumentTypeError(f"unknown network {text!r}; known: {', '.join(NETWORKS)}")
    return text
