"""The searches that there are: core's own, and those that plugins bring."""

from __future__ import annotations

from collage_core.errors import CollageError
from collage_core.pipeline.proof import COLLAGE, MIX
from collage_core.plugins import Registry
from collage_core.search.graph_level import GraphLevelSearch
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import Searcher

__all__ = ["search_named"]


def search_named(name: str, registry: Registry) -> Searcher:
    """The search of that name, whatever its case. CollageError lists the known ones, or says which two have
    one name.
    """
    known: dict[str, Searcher] = {}
    for search in (OpLevelSearch(), GraphLevelSearch(), *registry.brought("collage_searchers", Searcher)):
        key = search.name.lower()
        if key in (COLLAGE, MIX) or key in registry.backends:
            raise CollageError(f"a search must not be named {key!r}: in reports that is something else")
        if key in known:
            owners = f"{type(known[key]).__module__} and {type(search).__module__}"
            raise CollageError(f"two searches are named {key!r}: {owners}")
        known[key] = search
    try:
        return known[name.lower()]
    except KeyError:
        raise CollageError(f"unknown search {name!r}; installed: {', '.join(known)}") from None
