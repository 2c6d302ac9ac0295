"""A simulated accelerator for Collage."""

__version__ = "0.1.0"
