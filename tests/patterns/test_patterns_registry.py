"""Patterns and rules that a person adds in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage_core.errors import UnknownBackendError
from collage_core.patterns import is_op, wildcard
from collage_core.plugins import default_registry
from collage_core.registration import (
    add_backend_pattern,
    add_backend_pattern_rule,
    clear_registered,
    registered_patterns,
    registered_rules,
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    clear_registered()
    yield
    clear_registered()


def always(*_: object) -> bool:
    return True


def test_names_match_without_regard_to_case() -> None:
    added = add_backend_pattern(backend="Reference", pattern=is_op("relu")(wildcard()))
    assert added.backend == "reference"
    assert registered_patterns("REFERENCE") == (added,)
    rule = add_backend_pattern_rule(
        backend="REFERENCE", valid_ops=always, fusion_rule=always, name="mine", max_nodes=3
    )
    assert registered_rules("reference") == (rule,)
    assert (rule.backend, rule.name, rule.max_nodes) == ("reference", "mine", 3)
    assert registered_patterns("other") == ()
    assert registered_rules("other") == ()


def test_unknown_backend_lists_the_installed() -> None:
    with pytest.raises(
        UnknownBackendError, match=r"unknown backend 'cuBLAZ'; installed: .*reference"
    ) as raised:
        add_backend_pattern(backend="cuBLAZ", pattern=is_op("relu"))
    for name in default_registry().backends:
        assert name in str(raised.value)
    with pytest.raises(UnknownBackendError):
        add_backend_pattern_rule(backend="cuBLAZ", valid_ops=always, fusion_rule=always)


def test_adding_twice_changes_nothing() -> None:
    for _ in range(2):
        add_backend_pattern(backend="reference", pattern=is_op("relu")(wildcard()))
        add_backend_pattern_rule(backend="reference", valid_ops=always, fusion_rule=always)
    assert len(registered_patterns("reference")) == len(registered_rules("reference")) == 1


def test_clear() -> None:
    add_backend_pattern(backend="reference", pattern=is_op("relu"))
    clear_registered("Reference")
    assert registered_patterns("reference") == ()
