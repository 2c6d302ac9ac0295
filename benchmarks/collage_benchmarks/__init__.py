"""Networks built from code, and the comparisons that Collage's figures come from."""

__all__ = ["__version__"]

__version__ = "0.1.0"
