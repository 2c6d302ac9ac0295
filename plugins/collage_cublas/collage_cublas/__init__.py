"""NVIDIA cuBLASLt as a backend of Collage. Importing this package loads no library."""

__all__ = ["__version__"]

__version__ = "0.1.0"
