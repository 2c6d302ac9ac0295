"""Networks of transformers, cut down to tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["Answering"]


class Answering(nn.Module):  # type: ignore[misc]
    """Answers with the network's first output alone. names: of what it is given, in order. options: further
    arguments of its `forward`.
    """

    def __init__(self, network: nn.Module, *names: str, **options: Any) -> None:
        super().__init__()
        self.network = network
        self.names = names
        self.options = options

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        given = {name: x for name, x in zip(self.names, (first, second), strict=False) if x is not None}
        return self.network(**given, **self.options, return_dict=False)[0]
