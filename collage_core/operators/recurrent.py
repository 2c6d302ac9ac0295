"""RNN, GRU and LSTM: every direction, activation, length and clip that ONNX describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor, accumulator

__all__ = ["GRU", "LSTM", "RNN"]

Activation = Callable[[Tensor], Tensor]


class _Recurrent(OpRun):
    """states: how many tensors a step hands to the next. functions: activations of one direction."""

    states = 1
    functions: tuple[str, ...] = ()

    def _run(
        self,
        x: Tensor,
        w: Tensor,
        r: Tensor,
        b: Tensor | None = None,
        sequence_lens: Tensor | None = None,
        *initial: Tensor | None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        activations: Sequence[str] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        input_forget: int = 0,
        layout: int = 0,
        linear_before_reset: int = 0,
    ) -> tuple[Tensor, ...]:
        wide = accumulator(x.dtype)
        directions, hidden = r.shape[0], r.shape[-1]
        steps = (x.swapaxes(0, 1) if layout else x).astype(wide)
        length, batch = steps.shape[:2]
        lengths = np.full(batch, length) if sequence_lens is None else sequence_lens
        names = list(activations or self.functions * directions)
        found = list(_activations(names, activation_alpha or (), activation_beta or ()))
        results = np.zeros((length, directions, batch, hidden), wide)
        final = np.zeros((self.states, directions, batch, hidden), wide)
        for d in range(directions):
            backward = direction == "reverse" or d == 1
            cell = _Cell(
                w[d].astype(wide),
                r[d].astype(wide),
                np.zeros(2 * len(r[d]), wide) if b is None else b[d].astype(wide),
                np.zeros(3 * hidden, wide) if len(initial) < 3 or initial[2] is None else initial[2][d],
                found[d * len(self.functions) : (d + 1) * len(self.functions)],
                np.inf if clip is None else clip,
                bool(input_forget),
                bool(linear_before_reset),
            )
            for s, start in enumerate(initial[: self.states]):
                if start is not None:
                    final[s, d] = (start.swapaxes(0, 1) if layout else start)[d]
            for t in reversed(range(length)) if backward else range(length):
                # A sequence that is over keeps its state, and its results stay 0.
                runs = (t < lengths)[:, None]
                following = self._step(cell, steps[t], list(final[:, d]))
                final[:, d] = np.where(runs, following, final[:, d])
                results[t, d] = np.where(runs, following[0], 0)
        outputs = [results.transpose(2, 0, 1, 3) if layout else results]
        outputs += [state.swapaxes(0, 1) if layout else state for state in final]
        return tuple(o.astype(x.dtype, copy=False) for o in outputs[: len(self.output)])

    def _step(self, cell: _Cell, x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """The next state, the hidden one first; all [batch, hidden]."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one direction computes with. w [gates * hidden, input], r [gates * hidden, hidden]."""

    w: Tensor
    r: Tensor
    b: Tensor
    peepholes: Tensor
    activations: Sequence[Activation]
    clip: float
    input_forget: bool
    linear_before_reset: bool

    def gates(self, values: Tensor, weights: Tensor, bias: Tensor) -> list[Tensor]:
        """What each gate gets from `values`."""
        return np.split(values @ weights.T + bias, len(weights) // self.r.shape[-1], axis=-1)

    def both(self, x: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What each gate gets from the input, and from the state before."""
        ahead, back = np.split(self.b, 2)
        return self.gates(x, self.w, ahead), self.gates(h, self.r, back)

    def activate(self, which: int, value: Tensor) -> Tensor:
        """ "Clipping [...] is applied to the input of activations", says ONNX."""
        return self.activations[which](np.clip(value, -self.clip, self.clip))


class RNN(_Recurrent):
    functions = ("Tanh",)

    def _step(self, cell: _Cell, x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        (ahead,), (back,) = cell.both(x, state[0])
        return [cell.activate(0, ahead + back)]


class GRU(_Recurrent):
    functions = ("Sigmoid", "Tanh")

    def _step(self, cell: _Cell, x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        (h,) = state
        ahead, back = cell.both(x, h)
        update, reset = (cell.activate(0, ahead[g] + back[g]) for g in range(2))
        if cell.linear_before_reset:
            recurrent = reset * back[2]
        else:
            hidden = h.shape[-1]
            recurrent = (reset * h) @ cell.r[2 * hidden :].T + cell.b[-hidden:]
        candidate = cell.activate(1, ahead[2] + recurrent)
        return [(1 - update) * candidate + update * h]


class LSTM(_Recurrent):
    states = 2
    functions = ("Sigmoid", "Tanh", "Tanh")

    def _step(self, cell: _Cell, x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        h, c = state
        gate_i, gate_o, gate_f, gate_c = (a + b for a, b in zip(*cell.both(x, h), strict=True))
        peep_i, peep_o, peep_f = np.split(cell.peepholes, 3)
        taken = cell.activate(0, gate_i + peep_i * c)
        forget = 1 - taken if cell.input_forget else cell.activate(0, gate_f + peep_f * c)
        following = forget * c + taken * cell.activate(1, gate_c)
        shown = cell.activate(0, gate_o + peep_o * following)
        return [shown * cell.activate(2, following), following]


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> Iterator[Activation]:
    """In the order of `names`; each takes as many of the parameters as it has, or its operator's defaults."""
    alpha, beta = iter(alphas), iter(betas)
    for name in names:
        make, defaults = _ACTIVATIONS[name.lower()]
        given = [next(source, d) for source, d in zip((alpha, beta), defaults, strict=False)]
        yield make(*given)


_ACTIVATIONS: dict[str, tuple[Callable[..., Activation], tuple[float, ...]]] = {
    "relu": (lambda: lambda x: np.maximum(x, 0), ()),
    "tanh": (lambda: np.tanh, ()),
    "sigmoid": (lambda: lambda x: 1 / (1 + np.exp(-x)), ()),
    "softsign": (lambda: lambda x: x / (1 + np.abs(x)), ()),
    "softplus": (lambda: lambda x: np.logaddexp(x, 0), ()),
    "affine": (lambda a, b: lambda x: a * x + b, (1.0, 0.0)),
    "leakyrelu": (lambda a: lambda x: np.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda a: lambda x: np.where(x >= a, x, 0), (1.0,)),
    "scaledtanh": (lambda a, b: lambda x: a * np.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda a, b: lambda x: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (lambda a: lambda x: np.where(x >= 0, x, a * np.expm1(x)), (1.0,)),
}
