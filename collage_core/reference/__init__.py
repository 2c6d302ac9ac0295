"""Core's own backend, the ONNX reference evaluator: slow, always feasible, the measure of the others."""

from collage_core.reference.backend import ReferenceBackend
from collage_core.reference.evaluator import evaluate, evaluate_nodes, stored_as

__all__ = ["ReferenceBackend", "evaluate", "evaluate_nodes", "stored_as"]
