# What `collage_core` offers. __init__.py reads this file, and imports each name when it is asked for.

from .backend import Backend, BackendInfo, BackendKind, Kernel, Variant, plain_variant
from .background import Background, BackgroundState
from .candidates import Candidate, CandidateSet, Constraints, FixedGroup, generate_candidates
from .cli.progress import ProgressBars
from .costs.database import CostDatabase
from .costs.record import CostRecord, Policy
from .errors import (
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
from .formats import Format, channels_last, plain
from .inference import IOBinding, NodeArg, Session
from .ir import Graph, Operator, OpKind, RowAxes, Subgraph, load_model
from .ir.passes import normalise
from .ir.static import require_static
from .measuring.bounding import search_placement
from .measuring.costing import Costs
from .measuring.ledger import collect_costs, default_policy
from .measuring.machine import Machine
from .measuring.progress import Silent
from .measuring.workspace import Workspace
from .patterns import (
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
from .pipeline.effort import Effort, effort_named
from .pipeline.optimize import Optimization, optimize
from .pipeline.profiles import ProfileFound, optimize_profiles
from .pipeline.quantising import Quantising, quantise
from .pipeline.tuning import Tuning, tune
from .placement import Conversion, Group, Placement
from .plugins import Registry, default_registry, hookimpl
from .registration import add_backend_pattern, add_backend_pattern_rule
from .rules import (
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
from .runtime import Bundle, Context, Executable, build, export, load, read, read_profiles, save
from .search.formulate import Formulation, formulate
from .search.graph_level import GraphLevelSearch
from .search.op_level import OpLevelSearch
from .search.problem import Problem, Solution
from .search.searcher import Searcher, SearchResult, SearchTask
from .search.transitions import Transitions
from .serving import Serving
from .steering import PlacementFile, placement_yaml, read_placement
from .target import Target

__all__ = [
    "Backend",
    "BackendError",
    "BackendInfo",
    "BackendKind",
    "BackendPattern",
    "Background",
    "BackgroundState",
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
    "Effort",
    "Executable",
    "FixedGroup",
    "Format",
    "Formulation",
    "Graph",
    "GraphLevelSearch",
    "Group",
    "IOBinding",
    "InputError",
    "Kernel",
    "Machine",
    "Match",
    "ModelError",
    "NoMatch",
    "NodeArg",
    "OpKind",
    "OpLevelSearch",
    "Operator",
    "Optimization",
    "Pattern",
    "PatternRule",
    "Placement",
    "PlacementError",
    "PlacementFile",
    "Policy",
    "Problem",
    "ProfileFound",
    "ProgressBars",
    "Quantising",
    "Refusal",
    "Registry",
    "RowAxes",
    "SearchResult",
    "SearchTask",
    "Searcher",
    "Serving",
    "Session",
    "Silent",
    "Solution",
    "Subgraph",
    "Target",
    "Transitions",
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
    "effort_named",
    "export",
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
    "optimize_profiles",
    "outputs",
    "placement_yaml",
    "plain",
    "plain_variant",
    "quantise",
    "read",
    "read_placement",
    "read_profiles",
    "require_static",
    "save",
    "search_placement",
    "tune",
    "wildcard",
]
