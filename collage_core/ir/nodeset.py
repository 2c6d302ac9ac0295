"""Sets of nodes of one graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["NodeSet"]

_HASH_PRIME = 2**64 - 59


class NodeSet:
    """An immutable set of node ids. A bitmask inside, which makes the set algebra of the searches cheap;
    nobody else looks.
    """

    __slots__ = ("_mask",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        mask = 0
        for i in ids:
            mask |= 1 << i
        self._mask = mask

    @classmethod
    def _of(cls, mask: int) -> NodeSet:
        new = cls.__new__(cls)
        new._mask = mask
        return new

    def __contains__(self, id: int) -> bool:
        return bool(self._mask >> id & 1)

    def __iter__(self) -> Iterator[int]:
        mask = self._mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __or__(self, other: NodeSet) -> NodeSet:
        return NodeSet._of(self._mask | other._mask)

    def __and__(self, other: NodeSet) -> NodeSet:
        return NodeSet._of(self._mask & other._mask)

    def __sub__(self, other: NodeSet) -> NodeSet:
        return NodeSet._of(self._mask & ~other._mask)

    def __le__(self, other: NodeSet) -> bool:
        return self._mask & ~other._mask == 0

    def isdisjoint(self, other: NodeSet) -> bool:
        return self._mask & other._mask == 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeSet) and self._mask == other._mask

    def __hash__(self) -> int:
        # Python's hash of an int is its remainder by 2**61 - 1, in which bits 61 apart are one.
        # A second modulus tells them apart.
        return hash((self._mask, self._mask % _HASH_PRIME))

    def __repr__(self) -> str:
        return f"NodeSet({list(self)})"

    def __reduce__(self) -> tuple[object, ...]:
        return NodeSet, (list(self),)
