"""A genetic search over digits, which knows nothing of graphs (ADR 18)."""

from collage_core.search.evolution.evolve import Evaluation, Evolution, Evolved, StoppedBy, evolve
from collage_core.search.evolution.fitness import Fitness, Genome

__all__ = ["Evaluation", "Evolution", "Evolved", "Fitness", "Genome", "StoppedBy", "evolve"]
