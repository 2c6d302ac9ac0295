"""Backends that leave, or answer with rubbish, when they are asked about a user's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant, plain_variant
from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.patterns import BackendPattern, is_op, wildcard
from collage_core.plugins import hookimpl
from collage_core.rules import PatternRule
from collage_core.target import Target


class Rude(Backend):
    kind = BackendKind.OPERATOR

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, self.kind, "1.5", "2.0")

    def patterns(self) -> Sequence[BackendPattern]:
        return [BackendPattern(self.name, is_op("Relu")(wildcard()))]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError("nobody comes so far")


class Leaves(Rude):
    name = "leaves"

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        raise SystemExit(0)


class Odd(Rude):
    name = "odd"

    def patterns(self) -> Sequence[BackendPattern]:
        odd: Any = [42]
        return odd  # type: ignore[no-any-return]


class OddRules(Rude):
    name = "oddrules"

    def rules(self) -> Sequence[PatternRule]:
        odd: Any = ["Relu"]
        return odd  # type: ignore[no-any-return]


class Raises(Rude):
    name = "raises"

    @property
    def patterns(self) -> Any:
        raise RuntimeError("no patterns today")


class Exits(Rude):
    name = "exits"

    def patterns(self) -> Sequence[BackendPattern]:
        raise SystemExit(0)


class Numbers(Rude):
    name = "numbers"

    def environment(self, target: Target) -> Mapping[str, str]:
        odd: Any = {"THREADS": 3}
        return odd  # type: ignore[no-any-return]


class Unnamable(Rude):
    name = "unnamable"

    def environment(self, target: Target) -> Mapping[str, str]:
        return {"A=B": "x\0y"}


class Texts(Rude):
    name = "texts"
    kind = BackendKind.GRAPH

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        odd: Any = ["no" for _ in subgraphs]
        return odd  # type: ignore[no-any-return]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [Leaves(), Odd(), OddRules(), Raises(), Exits(), Numbers(), Unnamable(), Texts()]
