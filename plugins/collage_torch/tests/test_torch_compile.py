"""`torch.compile(model, backend="collage")` answers as PyTorch does, or says why PyTorch goes on itself."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from collage_torch import backend, collage, parts  # noqa: E402

from collage_core.errors import CollageError  # noqa: E402

pytestmark = [
    pytest.mark.ci,
    # What the exporter's own imports warn of.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

_nn: Any = torch.nn


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
    assert {((batch, 3, 8, 8),) for batch in given} == shapes
    placed = [part.placement for part in parts() if part.placement is not None]
    assert all("dnnl" in {g.backend for g in placement.groups} for placement in placed)


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
    assert [part.reason for part in parts()] == [None, None]


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
    assert {((3,),), ((5,),)} == {part.shapes for part in parts() if part.reason is None}


def test_what_fails_at_one_shape_stays_placed_at_others(options: dict[str, Any], monkeypatch: Any) -> None:
    compiled = torch.compile(_nn.Linear(4, 3).eval(), backend="collage", options=options, dynamic=True)

    def failing(*args: Any, **more: Any) -> Any:
        raise CollageError("the disk is full")

    with torch.no_grad():
        compiled(torch.randn(2, 4))
        with monkeypatch.context() as patched:
            patched.setattr(backend, "optimize", failing)
            with pytest.warns(UserWarning, match="to PyTorch: the disk is full"):
                compiled(torch.randn(5, 4))
            compiled(torch.randn(5, 4))
        compiled(torch.randn(6, 4))
        compiled(torch.randn(2, 4))
    told = [(part.shapes[0], part.reason) for part in parts()]
    assert told == [((2, 4), None), ((5, 4), "the disk is full"), ((6, 4), None)]


def test_what_shares_memory_is_left_to_pytorch(options: dict[str, Any]) -> None:
    def of_an_input(x: Any) -> Any:
        y = x.view(-1)
        torch._dynamo.graph_break()
        y.add_(1.0)
        return x * 2.0

    def of_an_answer(x: Any) -> Any:
        y = x * 2.0
        z = y.view(-1)
        torch._dynamo.graph_break()
        z.add_(1.0)
        return y

    for f, expected in ((of_an_input, 2.0), (of_an_answer, 1.0)):
        with torch.no_grad(), pytest.warns(UserWarning, match="leaves"):
            answer = _compiled(f, options)(torch.zeros(2, 2))
        assert answer.tolist() == [[expected] * 2] * 2


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (lambda x: torch.fft.fft(x), "complex64"),
        (lambda x: x.to(torch.bfloat16), "bfloat16"),
    ],
)
def test_answers_that_no_array_can_be_are_pytorchs(f: Any, said: str, options: dict[str, Any]) -> None:
    x = torch.randn(6)
    with torch.no_grad(), pytest.warns(UserWarning, match=said):
        answer = _compiled(f, options)(x)
    assert answer.dtype == f(x).dtype
    assert torch.equal(answer, f(x))


def test_dropout_at_rest_and_attention_are_placed(options: dict[str, Any]) -> None:
    layer, x = _nn.Linear(16, 32), torch.randn(5, 16)

    def attention(q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    with torch.no_grad():
        q = torch.randn(1, 2, 5, 8)
        torch.testing.assert_close(_compiled(attention, options)(q), attention(q), rtol=1e-4, atol=1e-5)
        compiled = _compiled(_nn.Sequential(layer, _nn.Dropout(0.5)).eval(), options)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    assert [part.reason for part in parts()] == [None, None]


def test_random_numbers_without_gradients_are_random(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            return torch.nn.functional.dropout(x, 0.5, True) + x

    compiled = _compiled(f, options)
    with pytest.warns(UserWarning, match="random"):
        first = compiled(torch.ones(64, requires_grad=True))
    assert not torch.equal(first, compiled(torch.ones(64, requires_grad=True)))


def test_what_needs_no_gradient_asks_for_none(options: dict[str, Any]) -> None:
    network = _nn.Linear(4, 3)

    def f(x: Any) -> Any:
        with torch.no_grad():
            return network(x)

    answer = _compiled(f, options)(torch.randn(2, 4))
    assert not answer.requires_grad
    assert answer.numpy().shape == (2, 3)


def test_answers_lie_as_pytorchs_do(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        y = torch.relu(x + 1.0).t()
        strides = y.stride()
        torch._dynamo.graph_break()
        return torch.as_strided(y, (8, 4), strides) * 1.0

    x = torch.randn(4, 8)
    convolve = _nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what goes on behind the break means something else in ONNX
            torch.testing.assert_close(_compiled(f, options)(x), f(x))
        answer = _compiled(convolve, options)(image)
    assert answer.stride() == convolve(image).stride()
    torch.testing.assert_close(answer, convolve(image), rtol=1e-4, atol=1e-5)


def test_what_onnx_means_otherwise_is_left_to_pytorch(options: dict[str, Any]) -> None:
    seen = torch.ones(5, 5, dtype=torch.bool)
    seen[-1] = False

    def attention(q: Any, mask: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    q = torch.randn(1, 2, 5, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="ONNX means something else"):
        answer = _compiled(attention, options)(q, seen)
    torch.testing.assert_close(answer, attention(q, seen))


def test_tangents_are_refused(options: dict[str, Any]) -> None:
    compiled = _compiled(lambda x: x * 2.0, options)
    x = torch.randn(3)
    with torch.no_grad():
        compiled(x)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
            with pytest.raises(RuntimeError, match="collage computes no gradients"):
                compiled(dual)


def test_numbers_that_vary_are_left_to_pytorch_in_the_end(options: dict[str, Any]) -> None:
    graph = collage(torch.fx.symbolic_trace(lambda x, p: (x * p,)), [], options=options)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for p in range(2, 8):
            torch.testing.assert_close(graph(x, float(p)), (x * p,))
    assert sum("its numbers vary" in str(w.message) for w in said) == 1
    assert sum(part.reason is None for part in parts()) == 3


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
    for option, value in (
        ("effort", "huge"),
        ("backends", ["nope"]),
        ("threads", 0),
        ("budget_s", "long"),
        ("max_error", -1.0),
    ):
        with pytest.raises(ValueError, match=option.removesuffix("s")):
            collage(graph, [], options={option: value})
