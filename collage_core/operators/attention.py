"""Attention, as `onnx.reference` has it but for one of its outputs."""

from __future__ import annotations

from typing import Any

from onnx.reference.ops.op_attention import Attention_23, Attention_25

__all__ = ["Attention"]


class Attention(Attention_25):
    def _run(self, *inputs: Any, **attributes: Any) -> Any:
        version = Attention_25 if self.run_params["opsets"][""] >= 25 else Attention_23
        results: Any = version._run(self, *inputs, **attributes)
        if not attributes.get("qk_matmul_output_mode") and len(self.output) > 3:
            # "If set to 0, qk_matmul_output is the output of qk matmul": before it is capped.
            *kept, _ = results
            results = (*kept, version._run(self, *inputs, **{**attributes, "softcap": None})[3])
        return results
