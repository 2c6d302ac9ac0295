"""Which variables a process has in which one library runs, and in which several do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from collage_core import BackendInfo, BackendKind, Target
from collage_core.backend import process_environment
from collage_core.costs.host import named_variables
from collage_core.errors import WorkerError
from collage_core.reference import ReferenceBackend


class _Named(ReferenceBackend):
    """Of which the variables count alone."""

    def __init__(self, name: str, kind: BackendKind = BackendKind.OPERATOR, beside: str = "1") -> None:
        self.name, self._kind, self._beside = name, kind, beside

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, self._kind, version="1", library_version=None)

    def environment(self, target: Target) -> Mapping[str, str]:
        return {f"{self.name}_THREADS": str(target.threads)}

    def environment_beside(self, target: Target) -> Mapping[str, str]:
        return {f"{self.name}_BESIDE": self._beside}


_A, _B, _REFERENCE = _Named("A"), _Named("B"), _Named("R", BackendKind.REFERENCE)


def test_one_library_is_told_what_it_needs_alone() -> None:
    assert process_environment([_A], Target("cpu", 3)) == {"A_THREADS": "3"}
    assert process_environment([_A, _REFERENCE], Target("cpu", 3)) == {"A_THREADS": "3", "R_THREADS": "3"}


def test_several_are_told_how_to_live_beside_each_other() -> None:
    found = process_environment([_A, _B], Target("cpu", 3))
    assert found == {"A_THREADS": "3", "B_THREADS": "3", "A_BESIDE": "1", "B_BESIDE": "1"}


def test_what_no_process_can_be_given_is_told() -> None:
    with pytest.raises(WorkerError, match="failed to name its environment variables"):
        named_variables([_A, _Named("C", beside="a\0b")], Target("cpu", 1))
    assert named_variables([_Named("C", beside="a\0b")], Target("cpu", 1)) == {"C_THREADS": "1"}
