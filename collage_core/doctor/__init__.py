"""Whether this machine is fit to measure on, and which libraries are missing: findings for a person."""

from collage_core.doctor.examination import examine
from collage_core.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
