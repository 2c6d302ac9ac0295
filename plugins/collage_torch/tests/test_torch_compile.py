"""`torch.compile(model, backend="collage")` answers as PyTorch does, or says why PyTorch goes on itself."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from collage_torch import collage, parts  # noqa: E402

pytestmark = [
    pytest.mark.ci,
    # What the exporter's own imports warn of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

_nn: Any = torch.nn


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """One library, so that little is measured."""
    return {"backends": ["dnnl"], "costs": tmp_path / "costs.sqlite", "budget_s": 20.0}


def _network() -> Any:
    return _nn.Sequential(
        _nn.Conv2d(3, 8, 3, padding=1), _nn.BatchNorm2d(8), _nn.ReLU(), _nn.Flatten(), _nn.Linear(8 * 64, 5)
    ).eval()


def _compiled(module: Any, options: dict[str, Any]) -> Any:
    return torch.compile(module, backend="collage", options=options)


def test_it_answers_as_pytorch_does_for_each_shape(options: dict[str, Any]) -> None:
    given = 1, 4
    network = _network()
    compiled = _compiled(network, options)
    with torch.no_grad():
        for batch in given:
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(compiled(2 * x), network(2 * x), rtol=1e-4, atol=1e-4)
    shapes = {part.shapes for part in parts() if part.reason is None}
    assert {((batch, 3, 8, 8),) for batch in given} <= shapes
    placed = [part.found for part in parts() if part.found is not None]
    assert all("dnnl" in {g.backend for g in found.placement.groups} for found in placed)


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


def test_gradients_are_refused_with_a_reason(options: dict[str, Any]) -> None:
    network = _nn.Linear(4, 3)
    answer = _compiled(network, options)(torch.randn(2, 4))
    assert answer.requires_grad
    with pytest.raises(RuntimeError, match="collage computes no gradients"):
        answer.sum().backward()


def test_random_numbers_are_left_to_pytorch(options: dict[str, Any]) -> None:
    network = _nn.Sequential(_nn.Linear(4, 64), _nn.Dropout(0.5)).train()
    x = torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match=r"leaves \d+ operations to PyTorch: .*random"):
        answer = _compiled(network, options)(x)
    assert 0 < int((answer == 0).sum()) < answer.numel()


def test_what_pytorch_runs_it_can_train(options: dict[str, Any]) -> None:
    network = _nn.Sequential(_nn.Linear(4, 8), _nn.Dropout(0.5)).train()
    with pytest.warns(UserWarning, match="leaves"):
        _compiled(network, options)(torch.randn(2, 4)).sum().backward()
    assert network[0].weight.grad is not None


def test_writing_into_an_input_is_left_to_pytorch(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        x.add_(1.0)
        return x * 2.0

    x = torch.zeros(3)
    with torch.no_grad(), pytest.warns(UserWarning, match="writes into"):
        answer = _compiled(f, options)(x)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert answer.tolist() == [2.0, 2.0, 2.0]


def test_statistics_of_training_are_kept(options: dict[str, Any]) -> None:
    network = _nn.BatchNorm1d(4).train()
    with torch.no_grad(), pytest.warns(UserWarning, match="writes into"):
        _compiled(network, options)(torch.randn(8, 4) + 3.0)
    assert float(network.running_mean.abs().min()) > 0.1


def test_types_that_numpy_lacks_are_left_to_pytorch(options: dict[str, Any]) -> None:
    x = torch.randn(3).to(torch.bfloat16)
    with torch.no_grad(), pytest.warns(UserWarning, match="bfloat16"):
        assert torch.equal(_compiled(torch.neg, options)(x), -x)


def test_a_break_makes_two_parts(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        y = x.exp()
        if float(y.sum()) > 0.0:
            return y.log() + 1.0
        return y

    x = torch.rand(5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(_compiled(f, options)(x), x + 1.0)
    assert sum(part.reason is None for part in parts()) >= 2


def test_several_answers_of_several_types(options: dict[str, Any]) -> None:
    def f(x: Any, count: int) -> Any:
        top = x.topk(count)
        return top.values, top.indices, (x > 0).any()

    x = torch.randn(3, 7)
    with torch.no_grad():
        values, indices, is_any = _compiled(f, options)(x, 2)
    assert torch.equal(values, x.topk(2).values)
    assert torch.equal(indices, x.topk(2).indices)
    assert is_any.dtype == torch.bool
    assert bool(is_any)


def test_one_answer_twice_and_an_input_as_an_answer(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        y = x * 3.0
        return y, x, y, y.sum()

    x = torch.randn(2, 3)
    with torch.no_grad():
        found = _compiled(f, options)(x)
    for answer, expected in zip(found, f(x), strict=True):
        torch.testing.assert_close(answer, expected)


def test_what_is_not_asked_is_not_missed(options: dict[str, Any]) -> None:
    def f(x: Any, unused: Any, y: Any) -> Any:
        return x + y

    x, y = torch.randn(3), torch.randn(3)
    with torch.no_grad():
        torch.testing.assert_close(_compiled(f, options)(x, torch.randn(5), y), x + y)


def test_sizes_that_vary_are_placed_one_by_one(options: dict[str, Any]) -> None:
    compiled = torch.compile(lambda x: x.exp() + x.shape[0], backend="collage", options=options, dynamic=True)
    with torch.no_grad():
        for count in (3, 5):
            x = torch.rand(count)
            torch.testing.assert_close(compiled(x), x.exp() + count)
    assert {((3,),), ((5,),)} <= {part.shapes for part in parts() if part.reason is None}


def test_threads_take_turns(options: dict[str, Any]) -> None:
    network = _network()
    compiled = _compiled(network, options)
    xs = [torch.randn(1, 3, 8, 8) for _ in range(4)]
    with torch.no_grad():
        compiled(xs[0])
    wrong: list[int] = []

    def ask(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(compiled(xs[i]), network(xs[i]), rtol=1e-4, atol=1e-4):
                    wrong.append(i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_not_contiguous_is_read_in_order(options: dict[str, Any]) -> None:
    compiled = _compiled(lambda x: x * 2.0 + 1.0, options)
    with torch.no_grad():
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x.T), x.T * 2.0 + 1.0)
        torch.testing.assert_close(compiled(x[:, ::2]), x[:, ::2] * 2.0 + 1.0)


def test_wrong_options_are_refused() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(ValueError, match="no option 'thread'; it has backends"):
        collage(graph, [], options={"thread": 1})
    with pytest.raises(ValueError, match="no mode 'max-autotune'"):
        collage(graph, [], mode="max-autotune")
    with pytest.raises(ValueError, match="effort"):
        collage(graph, [], options={"effort": "huge"})
