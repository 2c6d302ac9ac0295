"""NVIDIA cuDNN as a backend of Collage. Importing this package loads no library."""

__all__ = ["NAME", "__version__"]

__version__ = "0.1.0"

NAME = "cudnn"
"""The backend's."""
