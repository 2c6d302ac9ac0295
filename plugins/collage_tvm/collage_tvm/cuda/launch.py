"""What is launched: the body of one thread, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx

from collage_tvm.nest import Lanes, integer, sequence, variable

__all__ = ["Grid", "Launch", "Registers", "first_of", "local_buffer", "shared_buffer", "whole_blocks"]

Expr = Any
Stmt = Any


@dataclass
class Grid:
    """The variables of a launch: the thread in its block, the block in its part, and the part."""

    thread: Any = field(default_factory=lambda: variable("thread"))
    block: Any = field(default_factory=lambda: variable("block"))
    part: Any = field(default_factory=lambda: variable("part"))


@dataclass(frozen=True)
class Launch:
    """blocks: of each part (CUDA's gridDim.x); parts: gridDim.y; threads: of a block. buffers: what the body
    allocates."""

    grid: Grid
    blocks: int
    threads: int
    body: Stmt
    buffers: Sequence[Any]
    parts: int = 1

    def statement(self) -> Stmt:
        """The body of CUDA's kernel."""
        whole = sequence([*(tirx.AllocBuffer(b) for b in self.buffers), self.body])
        for var, tag, extent in (
            (self.grid.thread, "threadIdx.x", self.threads),
            (self.grid.part, "blockIdx.y", self.parts),
            (self.grid.block, "blockIdx.x", self.blocks),
        ):
            axis = tirx.IterVar(ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
            whole = tirx.AttrStmt(axis, "thread_extent", integer(extent), whole)
        return whole


class Registers(Lanes):
    """Of one thread, whose body is written for one element at a time."""

    def __init__(self) -> None:
        super().__init__(integer(0), 1)

    def buffer(self, dtype: Any) -> Any:
        self.buffers.append(local_buffer("slot", dtype, 1))
        return self.buffers[-1]


def local_buffer(name: str, dtype: Any, count: int) -> Any:
    """In registers, if all indices are known when it is compiled."""
    return tirx.decl_buffer((count,), dtype, name=name, scope="local")


def shared_buffer(name: str, dtype: Any, count: int) -> Any:
    """Of a block."""
    return tirx.decl_buffer((count,), dtype, name=name, scope="shared")


def whole_blocks(count: int, size: int) -> int:
    return -(-count // size)


def first_of(count: int, covered: int, position: Expr, body: Stmt) -> Stmt:
    """`body` where `position`, one of `covered`, is one of the first `count`."""
    return body if covered == count else tirx.IfThenElse(position < count, body, None)
