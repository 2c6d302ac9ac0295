"""What the tests of this plugin share. PyTorch may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    import torch
    from collage_torch import backend

    torch.manual_seed(0)
    backend._graphs.clear()  # of others' tests: PyTorch holds what goes on behind a break
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One library, and hardly any time, so that little is measured."""
    costs = tmp_path_factory.mktemp("torch") / "costs.sqlite"
    return {"backends": ["dnnl"], "costs": costs, "budget_s": 1.0}
