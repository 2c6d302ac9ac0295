"""The paper's Listing 1 (arXiv 2111.00655): registering patterns and a rule for an installed backend.

The program is written after the listing's description; what it registers must find operators in a graph that
has them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx.parser
import pytest

from collage_core import (
    Backend,
    BackendInfo,
    BackendKind,
    Kernel,
    Refusal,
    Target,
    UnknownBackendError,
    Variant,
    plain_variant,
    plugins,
)
from collage_core.candidates import generate_candidates
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.patterns import find_matches
from collage_core.plugins import Registry, default_registry, hookimpl
from collage_core.registration import clear_registered, registered_patterns, registered_rules
from collage_core.rules import generate

LISTING = textwrap.dedent(
    """
    from collage_core import *
    import collage_core as collage

    conv = is_op('conv2d')(wildcard(), wildcard())
    conv_add = is_op('add')(conv, wildcard())
    conv_add_relu = is_op('relu')(conv_add)
    collage.add_backend_pattern(backend={backend!r}, pattern=conv)
    collage.add_backend_pattern(backend={backend!r}, pattern=conv_add_relu)
    collage.add_backend_pattern(backend={backend!r}, pattern=is_op('dense')(wildcard(), wildcard()))

    def valid_op(op):
        if op.name == 'conv2d':
            logical = op.attrs.data_layout == 'NCHW' and op.attrs['kernel_layout'] == 'OIHW'
            return logical and op.attrs.groups == 1
        return op.type <= kInjective or op.name in ('dense', 'softmax')

    def fusion_rule(cur_type, src, sink):
        def fchecker(op):
            return op.type <= kBroadcast
        if cur_type == kFusable:
            return check_path(src, sink, fchecker)
        if cur_type <= kElemwise:
            return check_path(src, sink, lambda op: op.type <= kReduction)
        return False

    collage.add_backend_pattern_rule(backend={backend!r}, valid_ops=valid_op, fusion_rule=fusion_rule)
    """
)

MODEL = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,3,8,8] x) => (float y) {
    [conv] c = Conv<pads=[1,1,1,1]>(x, w)
    [add] a = Add(x, c)
    [relu] r = Relu(a)
    [grouped] d = Conv<group=3>(r, v)
    [exp] e = Exp(d)
    [flat] f = Flatten(e)
    [dense] g = Gemm(f, m)
    [neg] n = Neg(g)
    [soft] y = Softmax(n)
}"""


@pytest.fixture
def graph() -> Graph:
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (3, 3, 3, 3), "v": (3, 1, 3, 3), "m": (108, 5)}.items():
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.random(shape, dtype=np.float32), name)
        )
    return from_model(model)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    clear_registered()
    yield
    clear_registered()


def names(subgraph: Subgraph) -> str:
    return "+".join(n.name for n in subgraph.nodes)


PATTERNS_FIND = {"conv", "grouped", "conv+add+relu", "dense"}
RULE_FINDS = {
    *("conv", "add", "relu", "exp", "flat", "dense", "neg", "soft"),
    *("conv+add", "conv+add+relu", "add+relu", "exp+flat", "dense+neg", "neg+soft"),
}


@pytest.mark.parametrize("backend", [*default_registry().backends, "ReFeReNcE"])
def test_runs_with_the_names_of_installed_backends(backend: str, graph: Graph) -> None:
    exec(LISTING.format(backend=backend), {})
    patterns, (rule,) = registered_patterns(backend), registered_rules(backend)
    assert len(patterns) == 3
    assert {names(m.subgraph) for p in patterns for m in find_matches(graph, p.pattern)} == PATTERNS_FIND
    result = generate(graph, rule)
    assert {names(Subgraph(graph, g)) for g in result.groups} == RULE_FINDS
    assert "grouped" in {r.node for r in result.refusals}


def test_unknown_backend() -> None:
    with pytest.raises(UnknownBackendError, match=r"'cuDNN 99'; installed: .*reference"):
        exec(LISTING.format(backend="cuDNN 99"), {})


class Anything(Backend):
    """An operator library that offers whatever it is asked about and says nothing by itself."""

    name = "anything"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


class Plugin:
    @hookimpl
    def collage_backends(self) -> Sequence[Backend]:
        return [Anything()]


def test_what_it_registers_becomes_candidates(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([Plugin()], entry_points=False)
    monkeypatch.setattr(plugins, "default_registry", lambda: registry)
    backend = registry.backend("anything")
    assert generate_candidates(graph, [backend], Target()).candidates == ()
    exec(LISTING.format(backend="Anything"), {})
    found = generate_candidates(graph, [backend], Target()).candidates
    offered = {names(c.subgraph) for c in found if c.backend == "anything"}
    assert offered == PATTERNS_FIND | RULE_FINDS
