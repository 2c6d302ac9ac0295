"""A convolution as ncnn sees it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NO_ACTIVATION", "TILES", "Activation", "Convolution", "Image"]

TILES = ("2", "4", "6")
"""Results along each side that one of Winograd's tiles may yield. Larger ones need fewer products, and more
memory for the weights: (tile + 2)^2 / 9 times theirs.
"""

_WINOGRAD_CHANNELS = 8
"""With no more channels than these on both sides ncnn does not take Winograd's algorithm."""


@dataclass(frozen=True, slots=True)
class Activation:
    """number: ncnn's `activation_type`. parameters: its `activation_params`."""

    number: int
    parameters: tuple[float, ...] = ()


NO_ACTIVATION = Activation(0)


@dataclass(frozen=True, slots=True)
class Image:
    """The extent of one image of a batch."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Convolution:
    """Pairs are height and width. has_bias: whether something is added to each channel. begin and end: the
    padding. activation: of the result.
    """

    has_bias: bool
    input: Image
    output: Image
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: tuple[int, int]
    end: tuple[int, int]
    activation: Activation

    @property
    def can_winograd(self) -> bool:
        """Whether it may be computed with fewer products (Lavin and Gray, arXiv 1509.09308)."""
        return (
            (self.kernel, self.strides, self.dilations, self.groups) == ((3, 3), (1, 1), (1, 1), 1)
            and max(self.input.channels, self.output.channels) > _WINOGRAD_CHANNELS
        )  # fmt: skip
