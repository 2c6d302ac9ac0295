"""Whether rows of a model's inputs depend on each other, by following them (docs/adr/0047)."""

from collage_core.ir.rows.proof import independent_rows

__all__ = ["independent_rows"]
