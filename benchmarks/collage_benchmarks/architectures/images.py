"""Architectures that read or make images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import transformers
from torch import Tensor, nn

from collage_benchmarks.architectures.answers import Answering
from collage_benchmarks.architectures.architecture import Architecture
from collage_benchmarks.architectures.suppression import suppressed

__all__ = ["IMAGES"]

_BATCH: Sequence[Mapping[int, str]] = ({0: "batch"},)


def _image(size: int, side: int = 224, channels: int = 3) -> tuple[Tensor]:
    return (torch.rand(size, channels, side, side),)


def _twice(channels: int, filters: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for given in (channels, filters):
        layers += [nn.Conv2d(given, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
    return nn.Sequential(*layers)


class _UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al. (arXiv 1505.04597), padded, with a quarter of its filters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256)
        self.down = nn.ModuleList(_twice(*pair) for pair in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2)
            for wide, narrow in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.join = nn.ModuleList(_twice(2 * width, width) for width in widths[-2::-1])
        self.classes = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        kept = []
        for i, block in enumerate(self.down):
            image = block(nn.functional.max_pool2d(image, 2) if i else image)
            kept.append(image)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            image = join(torch.cat([kept.pop(), up(image)], 1))
        return self.classes(image)


class _SuperResolution(nn.Module):  # type: ignore[misc]
    """ESPCN of Shi et al. (arXiv 1609.05158), three times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh()
        )
        self.last = nn.Conv2d(32, 9, 3, padding=1)

    def forward(self, luminance: Tensor) -> Tensor:
        return nn.functional.pixel_shuffle(self.last(self.body(luminance)), 3)


def _generator() -> nn.Module:
    """DCGAN's of Radford et al. (arXiv 1511.06434)."""
    widths = (100, 512, 256, 128, 64)
    layers: list[nn.Module] = []
    for i, (given, width) in enumerate(itertools.pairwise(widths)):
        stride, padding = (2, 1) if i else (1, 0)
        layers += [
            nn.ConvTranspose2d(given, width, 4, stride, padding, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


class _Detector(nn.Module):  # type: ignore[misc]
    """A head of one anchor a position, as SSD's (arXiv 1512.02325): boxes, scores and their suppression."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.MobileNetV2Config(depth_multiplier=0.5)
        self.body = Answering(transformers.MobileNetV2Model(config, add_pooling_layer=False), "pixel_values")
        self.offsets, self.scores = nn.Conv2d(1280, 4, 3, padding=1), nn.Conv2d(1280, 1, 3, padding=1)
        rows, columns = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
        self.register_buffer("centres", torch.stack([columns, rows], -1).reshape(-1, 2) * 32.0 + 16.0)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(image)
        offsets = self.offsets(features).permute(0, 2, 3, 1).reshape(-1, 4)
        scores = torch.sigmoid(self.scores(features)).reshape(-1)
        centres = self.centres + 8.0 * torch.tanh(offsets[:, :2])
        sides = 64.0 * torch.exp(0.2 * torch.tanh(offsets[:, 2:]))
        boxes = torch.cat([centres - sides / 2, centres + sides / 2], 1)
        kept = suppressed(boxes, scores, 0.5)
        return boxes[kept], scores[kept]


def _of(title: str, make: Callable[[], nn.Module], side: int = 224) -> Architecture:
    """A network of transformers that reads images, with an open batch."""

    def made() -> nn.Module:
        return Answering(make(), "pixel_values")

    return Architecture(title, made, lambda size: _image(size, side), (2, 1), _BATCH)


def _vit() -> nn.Module:
    """ViT-Ti/16 of Touvron et al. (arXiv 2012.12877)."""
    config = transformers.ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)
    return transformers.ViTModel(config, add_pooling_layer=False)


def _swin() -> nn.Module:
    # With its other attention PyTorch 2.13 fails to decompose what it has exported.
    return transformers.SwinModel(transformers.SwinConfig(attn_implementation="eager"))


def _resnet18() -> nn.Module:
    config = transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return transformers.ResNetModel(config)


def _efficientnet() -> nn.Module:
    """B0 of Tan and Le (arXiv 1905.11946)."""
    config = transformers.EfficientNetConfig(
        image_size=224,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        initializer_range=0.2,  # its own lets values die out before they are normalised
    )
    return transformers.EfficientNetModel(config)


def _regnet() -> nn.Module:
    config = transformers.RegNetConfig(
        embedding_size=32, hidden_sizes=[48, 104, 208, 440], depths=[2, 6, 17, 2], groups_width=8
    )
    return transformers.RegNetModel(config)


IMAGES: Mapping[str, Architecture] = MappingProxyType(
    {
        "vit": _of("ViT-Ti/16", _vit),
        "swin": _of("Swin-T", _swin),
        "convnext": _of("ConvNeXt-T", lambda: transformers.ConvNextModel(transformers.ConvNextConfig())),
        "resnet18": _of("ResNet-18", _resnet18),
        "mobilenet": _of(
            "MobileNet v2", lambda: transformers.MobileNetV2Model(transformers.MobileNetV2Config())
        ),
        "efficientnet": _of("EfficientNet-B0", _efficientnet),
        "regnet": _of("RegNetY, 8 channels a group", _regnet),
        "segformer": _of(
            "SegFormer-B0",
            lambda: transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig()),
        ),
        "unet": Architecture(
            "U-Net, a quarter of its filters", _UNet, lambda size: _image(size, 128), (2, 1), _BATCH
        ),
        "super_resolution": Architecture(
            "ESPCN, three times",
            _SuperResolution,
            lambda size: (torch.rand(1, 1, size, size + 32),),
            (96, 64),
            ({2: "height", 3: "width"},),
        ),
        "gan": Architecture(
            "DCGAN's generator", _generator, lambda size: (torch.randn(size, 100, 1, 1),), (3, 1), _BATCH
        ),
        "detector": Architecture("detector head with suppression", _Detector, lambda size: _image(1, 320)),
    }
)
