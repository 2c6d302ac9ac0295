"""Models with If, Loop and Scan, in ONNX's text form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

__all__ = ["CONTROL_FLOW", "control_flow_model", "inputs_of"]

_HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>\n'


def control_flow_model(text: str, opset: int = 20) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form."""
    return onnx.parser.parse_model(_HEAD.format(opset=opset) + text)


CONTROL_FLOW: dict[str, str] = {
    "if": """
        g (float[2,3] x, bool c) => (float[2,3] y) {
          t = Exp (x)
          z = If (c) <
            then_branch = t () => (float[2,3] a) { a = Add (x, t) },
            else_branch = e () => (float[2,3] a) { b = Neg (x)  a = Mul (b, b) }>
          y = Tanh (z)
        }""",
    "if of two": """
        g (float[2,3] x, bool c) => (float[2,3] y, float[3] z) {
          y, z = If (c) <
            then_branch = t () => (p, q) {
              p = Relu (x)
              k = Constant <value = int64[1] {0}> ()
              q = ReduceMax <keepdims = 0> (x, k) },
            else_branch = e () => (p, q) <float[2,3] p = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
              k = Constant <value = int64[1] {0}> ()
              q = ReduceMin <keepdims = 0> (x, k) }>
        }""",
    "if that yields what it captures": """
        g (float[4] x, bool c) => (float[4] y, float[4] z) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
          t = Mul (x, w)
          y, z = If (c) <
            then_branch = t1 () => (t, w) {},
            else_branch = e () => (x, x) {}>
        }""",
    "nested ifs": """
        g (float[4] x, bool c, bool d) => (float[4] y) <float[1] w = {2.0}> {
          t = Sqrt (w)
          y = If (c) <
            then_branch = t1 () => (r) {
              u = Mul (x, t)
              r = If (d) <
                then_branch = t2 () => (s) { s = Add (u, w) },
                else_branch = e2 () => (s) { s = Sub (u, x) }> },
            else_branch = e1 () => (r) { r = Identity (x) }>
        }""",
    "for": """
        g (float[3] x) => (float[3] y, float[4,3] all) <int64 n = {4}> {
          t = Sin (x)
          y, all = Loop (n, "", x) <body = b (int64 i, bool c, float[3] s) => (go, r, float[3] q) {
            go = Identity (c)
            f = Cast <to = 1> (i)
            g = Mul (t, f)
            r = Add (s, g)
            q = Neg (r) }>
        }""",
    "while": """
        g (float[2] x, bool keep) => (float[2] y) <float limit = {40.0}, int64 axis = {0}> {
          y = Loop ("", keep, x) <body = b (int64 i, bool c, float[2] s) => (go, r) {
            one = Constant <value_float = 1.5> ()
            a = Abs (s)
            b = Add (a, one)
            r = Mul (b, one)
            m = ReduceMax <keepdims = 0> (r)
            go = Less (m, limit) }>
        }""",
    "loop that is given its trips": """
        g (int64 n, bool keep, float[2,2] x) => (float[2,2] y) {
          y = Loop (n, keep, x) <body = b (int64 i, bool c, float[2,2] s) => (go, r) {
            go = Identity (c)
            t = Transpose <perm = [1, 0]> (s)
            r = Add (t, x) }>
        }""",
    "loop without trips": """
        g (float[2,3] x) => (float[2,3] y, float[0,3,2] q) <int64 n = {0}> {
          z, q = Loop (n, "", x) <body = b (int64 i, bool c, float[2,3] s) => (c, r, w) {
            r = Relu (s)
            w = Transpose <perm = [1, 0]> (s) }>
          y = Exp (z)
        }""",
    "scan": """
        g (float[2] h, float[5,2] x) => (float[2] y, float[5,2] all) <float[2,2] w = {0.5, 0.25, -0.5, 1.0}> {
          y, all = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (r, q) {
            p = MatMul (s, w)
            a = Add (p, e)
            r = Tanh (a)
            q = Identity (r) }> (h, x)
        }""",
    "scan along other axes": """
        g (float[3] h, float[3,4] x, float[2,4,3] z) => (float[3] y, float[3,4] p, float[4,2,3] q) {
          y, p, q = Scan <num_scan_inputs = 2, scan_input_axes = [1, -2], scan_input_directions = [0, 1],
              scan_output_axes = [-1, 0], scan_output_directions = [1, 0],
              body = b (float[3] s, float[3] e, float[2,3] f) => (r, u, v) {
            r = Add (s, e)
            u = Sub (e, h)
            v = Mul (f, r) }> (h, x, z)
        }""",
    "loop in an if in a loop": """
        g (float[3] x, bool c) => (float[3] y) <int64 n = {3}, int64 two = {2}, bool yes = {1}> {
          t = Abs (x)
          y = Loop (n, yes, x) <body = outer (int64 i, bool k, float[3] s) => (k, r) {
            u = Sin (s)
            r = If (c) <
              then_branch = t1 () => (z) {
                z = Loop (two, yes, u) <body = inner (int64 j, bool l, float[3] v) => (l, w) {
                  f = Cast <to = 1> (i)
                  a = Add (v, f)
                  b = Mul (a, t)
                  w = Add (b, s) }> },
              else_branch = e1 () => (u) {}> }>
        }""",
    "between images": """
        g (float[1,4,6,6] x, bool c) => (float[1,4,6,6] y) {
          k = Constant <value = float[4,1,1,1] {1.0, 2.0, -1.0, 0.5}> ()
          a = Conv <group = 4> (x, k)
          b = If (c) <
            then_branch = t () => (r) { r = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (a) },
            else_branch = e () => (r) { r = Mul (a, x) }>
          y = Conv <group = 4> (b, k)
        }""",
}
"""Graphs by what is in them; all shapes are known without the model's being run."""


def inputs_of(model: onnx.ModelProto, seed: int = 0) -> list[dict[str, npt.NDArray[Any]]]:
    """Inputs by name, once with true conditions and once with false ones; trip counts are small."""
    random = np.random.default_rng(seed)
    sets = []
    for truth in (True, False):
        given: dict[str, npt.NDArray[Any]] = {}
        for v in model.graph.input:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
            if dtype == np.bool_:
                given[v.name] = np.full(shape, truth)
            elif dtype.kind == "i":
                given[v.name] = random.integers(1, 5, shape, dtype)
            else:
                given[v.name] = random.standard_normal(shape).astype(dtype)
        sets.append(given)
    return sets
