"""Measured costs: how they are taken, in supervised processes, and where they are kept."""

from collage_core.costs.database import CostDatabase, StoredCost, default_path
from collage_core.costs.fingerprint import cache_sizes_bytes, environment_of
from collage_core.costs.inputs import synthesise_inputs
from collage_core.costs.job import ConversionItem, KernelItem, MeasureJob
from collage_core.costs.lock import measuring_lock
from collage_core.costs.measure import run_job
from collage_core.costs.record import CostKey, CostRecord, Policy, Status
from collage_core.costs.recording import Recording, record
from collage_core.costs.rounds import Limits, Rounds, Turns, measure_rounds
from collage_core.costs.samples import Samples
from collage_core.costs.seats import Contender, Outcome
from collage_core.costs.timing import time_bound

__all__ = [
    "Contender",
    "ConversionItem",
    "CostDatabase",
    "CostKey",
    "CostRecord",
    "KernelItem",
    "Limits",
    "MeasureJob",
    "Outcome",
    "Policy",
    "Recording",
    "Rounds",
    "Samples",
    "Status",
    "StoredCost",
    "Turns",
    "cache_sizes_bytes",
    "default_path",
    "environment_of",
    "measure_rounds",
    "measuring_lock",
    "record",
    "run_job",
    "synthesise_inputs",
    "time_bound",
]
