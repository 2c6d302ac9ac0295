"""Collage places the operators of an ONNX model on the backends installed here, by measurement and search."""

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant, plain_variant
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostRecord, Policy
from collage_core.device import Target
from collage_core.errors import (
    BackendError,
    BundleError,
    CollageError,
    CostDatabaseError,
    InputError,
    ModelError,
    PlacementError,
    Refusal,
    UnknownBackendError,
    WorkerError,
)
from collage_core.formats import Format, channels_last, plain
from collage_core.ir import Graph, Operator, OpKind, Subgraph, load_model
from collage_core.ir.passes import normalise
from collage_core.ir.verify import require_static
from collage_core.patterns import (
    BackendPattern,
    Match,
    NoMatch,
    Pattern,
    dominates,
    find_matches,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    match,
    outputs,
    wildcard,
)
from collage_core.pipeline.costing import Costs, collect_costs, default_policy
from collage_core.pipeline.optimize import Optimization, optimize, optimize_graph, search_placement
from collage_core.pipeline.progress import Silent
from collage_core.pipeline.tuning import Tuning, tune
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry, hookimpl
from collage_core.registration import add_backend_pattern, add_backend_pattern_rule
from collage_core.rules import (
    PatternRule,
    check_path,
    generate,
    kBroadcast,
    kElemWise,
    kElemwise,
    kFusable,
    kInjective,
    kOpaque,
    kOutEWiseFusable,
    kReduction,
    kTuple,
)
from collage_core.runtime import Bundle, Context, Executable, build, load, read, save
from collage_core.search.candidates import Candidate, CandidateSet, Constraints, generate_candidates
from collage_core.search.formulate import Formulation, formulate
from collage_core.search.graph_level import GraphLevelSearch
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.problem import Problem, Solution
from collage_core.search.searcher import Searcher, SearchResult, SearchTask

__all__ = [
    "Backend",
    "BackendError",
    "BackendInfo",
    "BackendKind",
    "BackendPattern",
    "Bundle",
    "BundleError",
    "Candidate",
    "CandidateSet",
    "CollageError",
    "Constraints",
    "Context",
    "Conversion",
    "CostDatabase",
    "CostDatabaseError",
    "CostRecord",
    "Costs",
    "Executable",
    "Format",
    "Formulation",
    "Graph",
    "GraphLevelSearch",
    "Group",
    "InputError",
    "Kernel",
    "Match",
    "ModelError",
    "NoMatch",
    "OpKind",
    "OpLevelSearch",
    "Operator",
    "Optimization",
    "Pattern",
    "PatternRule",
    "Placement",
    "PlacementError",
    "Policy",
    "Problem",
    "Refusal",
    "Registry",
    "SearchResult",
    "SearchTask",
    "Searcher",
    "Silent",
    "Solution",
    "Subgraph",
    "Target",
    "Tuning",
    "UnknownBackendError",
    "Variant",
    "WorkerError",
    "Workspace",
    "add_backend_pattern",
    "add_backend_pattern_rule",
    "build",
    "channels_last",
    "check_path",
    "collect_costs",
    "default_policy",
    "default_registry",
    "dominates",
    "find_matches",
    "formulate",
    "generate",
    "generate_candidates",
    "hookimpl",
    "is_constant",
    "is_op",
    "is_tuple",
    "is_tuple_get_item",
    "kBroadcast",
    "kElemWise",
    "kElemwise",
    "kFusable",
    "kInjective",
    "kOpaque",
    "kOutEWiseFusable",
    "kReduction",
    "kTuple",
    "load",
    "load_model",
    "match",
    "normalise",
    "optimize",
    "optimize_graph",
    "outputs",
    "plain",
    "plain_variant",
    "read",
    "require_static",
    "save",
    "search_placement",
    "tune",
    "wildcard",
]
