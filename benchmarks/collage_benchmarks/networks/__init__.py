"""Networks as ONNX models, built from code with seeded weights."""

from collage_benchmarks.networks.bert import bert_encoder
from collage_benchmarks.networks.calibration import calibrate
from collage_benchmarks.networks.catalogue import NETWORKS, Network, add_networks
from collage_benchmarks.networks.mnist import mnist
from collage_benchmarks.networks.mobilenet import mobilenet_v2
from collage_benchmarks.networks.nasnet import nasnet_a
from collage_benchmarks.networks.resnet import resnext50
from collage_benchmarks.networks.tiny import tiny_conv, tiny_encoder

__all__ = [
    "NETWORKS",
    "Network",
    "add_networks",
    "bert_encoder",
    "calibrate",
    "mnist",
    "mobilenet_v2",
    "nasnet_a",
    "resnext50",
    "tiny_conv",
    "tiny_encoder",
]
