"""Loop and Scan. Their bodies are evaluators that are given what lies outside by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["Loop", "Scan"]


class _Iteration(OpRun):
    body: ReferenceEvaluator

    def need_context(self) -> bool:
        """Bodies read values by the names that they have outside."""
        return True

    def _step(self, outside: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
        feeds = {**outside, **dict(zip(self.body.input_names, given, strict=True))}
        results = self.body.run(None, feeds)
        return [r if isinstance(r, list) else np.asarray(r) for r in results]  # a list is a sequence

    def _stacked(self, found: Sequence[Tensor], output: int, axis: int = 0, length: int = 0) -> Tensor:
        """What an output of the body has been, along a new axis; `length` times nothing if it never ran, in
        the shape that the body states.
        """
        if found:
            return np.stack(found, axis)
        type = (self.body.output_types_ or [])[output].tensor_type
        shape = [d.dim_value for d in type.shape.dim]
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, length)
        return np.zeros(shape, helper.tensor_dtype_to_np_dtype(type.elem_type or 1))


class Loop(_Iteration):
    def _run(
        self,
        trips: Tensor | None = None,
        condition: Tensor | None = None,
        *states: Tensor,
        context: Mapping[str, Any],
        **_: Any,
    ) -> tuple[Tensor, ...]:
        current = list(states)
        scanned: list[list[Tensor]] = [[] for _ in self.body.output_names[1 + len(current) :]]
        goes_on = condition is None or bool(condition.item())
        trip = 0
        while goes_on and (trips is None or trip < trips.item()):
            results = self._step(context, [np.array(trip), np.array(goes_on), *current])
            if condition is not None:
                goes_on = bool(results[0].item())
            current = results[1 : 1 + len(current)]
            for values, result in zip(scanned, results[1 + len(current) :], strict=True):
                values.append(result)
            trip += 1
        found = [self._stacked(values, 1 + len(current) + k) for k, values in enumerate(scanned)]
        return (*current, *found)


class Scan(_Iteration):
    def _run(
        self, *given: Tensor | None, context: Mapping[str, Any], num_scan_inputs: int, **stated: Any
    ) -> tuple[Tensor, ...]:
        if self.run_params["opsets"][""] < 9:
            return self._batches(context, given[0], given[1:], num_scan_inputs, stated.get("directions"))
        first = len(given) - num_scan_inputs
        scanned = len(self.body.output_names) - first
        axes = stated.get("scan_input_axes") or [0] * num_scan_inputs
        backward = stated.get("scan_input_directions") or [0] * num_scan_inputs
        sequences = [
            np.flip(s, 0) if b else s
            for x, a, b in zip(given[first:], axes, backward, strict=True)
            for s in (np.moveaxis(np.asarray(x), a, 0),)
        ]
        states, found = self._steps(context, given[:first], sequences, len(sequences[0]))
        axes = stated.get("scan_output_axes") or [0] * scanned
        backward = stated.get("scan_output_directions") or [0] * scanned
        results = [
            self._stacked(values[::-1] if b else values, first + k, a)
            for k, (values, a, b) in enumerate(zip(found, axes, backward, strict=True))
        ]
        return (*states, *results)

    def _batches(
        self,
        context: Mapping[str, Any],
        lengths: Tensor | None,
        given: Sequence[Any],
        count: int,
        directions: Sequence[int] | None,
    ) -> tuple[Tensor, ...]:
        """Scan of opset 8: batches along axis 0, whose sequences along axis 1 may end early."""
        first = len(given) - count
        longest = given[first].shape[1]
        rows: list[list[Tensor]] = []
        for batch in range(len(given[first])):
            length = longest if lengths is None else int(lengths[batch])
            sequences = [
                s[:length][::-1] if b else s[:length]
                for x, b in zip(given[first:], directions or [0] * count, strict=True)
                for s in (x[batch],)
            ]
            states, found = self._steps(context, [x[batch] for x in given[:first]], sequences, length)
            results = [self._stacked(values, first + k, 0, 0) for k, values in enumerate(found)]
            padded = [
                np.concatenate([r, np.zeros((longest - length, *r.shape[1:]), r.dtype)]) for r in results
            ]
            rows.append([*states, *padded])
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def _steps(
        self, context: Mapping[str, Any], states: Sequence[Any], sequences: Sequence[Tensor], length: int
    ) -> tuple[list[Tensor], list[list[Tensor]]]:
        """The last states, and what each other output of the body has been."""
        current = list(states)
        found: list[list[Tensor]] = [[] for _ in self.body.output_names[len(current) :]]
        for step in range(length):
            results = self._step(context, [*current, *(s[step] for s in sequences)])
            current = results[: len(current)]
            for values, result in zip(found, results[len(current) :], strict=True):
                values.append(result)
        return current, found
