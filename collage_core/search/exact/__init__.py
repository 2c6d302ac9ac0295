"""The dynamic programme: states by claimed set, codes of live values, dominance (ADR 10)."""
