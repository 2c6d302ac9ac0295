"""Parameters that change after a graph was placed with them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from collage_torch import backend  # noqa: E402

import collage_core  # noqa: E402

pytestmark = [
    pytest.mark.ci,
    # What the exporter's own imports warn of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

_nn: Any = torch.nn


def _compiled(module: Any, options: dict[str, Any]) -> Any:
    return torch.compile(module, backend="collage", options=options)


def test_weights_that_change_are_heard(options: dict[str, Any]) -> None:
    network = _nn.Linear(4, 3).eval()
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    with torch.no_grad():
        before = compiled(x)
        network.weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), network(x))
        assert not torch.equal(before, compiled(x))
        network.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})
        torch.testing.assert_close(compiled(x), x.sum(1, keepdim=True).expand(2, 3))


def test_modules_of_one_class_keep_their_own_weights(options: dict[str, Any]) -> None:
    class Twice(_nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _nn.Linear(4, 4), _nn.Linear(4, 4)
            for layer in (self.first, self.second):
                layer.compile(backend="collage", options=options)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    network = Twice().eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = x @ network.first.weight.T + network.first.bias
        expected = expected @ network.second.weight.T + network.second.bias
        for _ in range(3):
            torch.testing.assert_close(network(x), expected)


def test_statistics_of_training_are_kept(options: dict[str, Any]) -> None:
    network = _nn.BatchNorm1d(4).train()
    with torch.no_grad(), pytest.warns(UserWarning, match="writes into"):
        _compiled(network, options)(torch.randn(8, 4) + 3.0)
    assert float(network.running_mean.abs().min()) > 0.1


def test_weights_that_are_replaced_below_are_heard(options: dict[str, Any]) -> None:
    network = _nn.Linear(4, 3).eval()
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        network.weight.data = torch.ones(3, 4)
        torch.testing.assert_close(compiled(x), network(x))


def test_weights_of_inference_mode_may_be_written(options: dict[str, Any]) -> None:
    with torch.inference_mode():
        network = _nn.Linear(4, 3).eval()
        compiled = _compiled(network, options)
        x = torch.randn(2, 4)
        compiled(x)
        network.weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), network(x))


def test_weights_written_while_it_is_placed_are_heard(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _nn.Linear(4, 3).eval()
    real = collage_core.optimize

    def slow(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        with torch.no_grad():
            network.weight.mul_(2.0)
        return found

    monkeypatch.setattr("collage_torch.backend.optimize", slow)
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        monkeypatch.setattr("collage_torch.backend.optimize", real)
        torch.testing.assert_close(compiled(x), network(x))


def _trained(network: Any) -> None:
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(network.parameters(), 0.5, fused=True).step()


def _observed(network: Any) -> None:
    network.train()
    network(torch.randn(8, 4) + 3.0)
    network.eval()


def _averaged(network: Any) -> None:
    for parameter in network.parameters():
        parameter.data.mul_(0.9).add_(torch.randn_like(parameter), alpha=0.1)


@pytest.mark.parametrize("change", [_trained, _observed, _averaged])
def test_what_is_written_without_a_word_is_heard(change: Any, options: dict[str, Any]) -> None:
    network = _nn.Sequential(_nn.Linear(4, 3), _nn.BatchNorm1d(3)).eval()
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        change(network)
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-5)


def test_parameters_that_are_replaced_are_forgotten(options: dict[str, Any]) -> None:
    """And let go of: a server that is given new ones every day does not grow."""
    network = _nn.Linear(4, 3).eval()
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    gone = []
    with torch.no_grad():
        for _ in range(4):
            gone.append(weakref.ref(network.weight))
            network.weight = _nn.Parameter(torch.randn(3, 4))
            torch.testing.assert_close(compiled(x), network(x))
    gc.collect()
    assert [held() for held in gone] == [None] * 4
    assert [len(graph._known) for graph in backend._graphs] == [1]


def test_of_many_parameters_the_newest_are_kept(options: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(backend, "_MOST_WEIGHTS", 2)
    network = _nn.Linear(4, 3).eval()
    compiled = _compiled(network, options)
    x = torch.randn(2, 4)
    kept = [_nn.Parameter(torch.randn(3, 4)) for _ in range(3)]
    with torch.no_grad():
        for weight in (*kept, kept[0]):
            network.weight = weight
            torch.testing.assert_close(compiled(x), network(x))
    assert all(len(graph._known) <= 2 for graph in backend._graphs)
