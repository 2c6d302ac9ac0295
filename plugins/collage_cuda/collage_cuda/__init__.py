"""NVIDIA GPUs as a device of Collage. Importing this package loads no library."""

__all__ = ["NAME", "__version__"]

__version__ = "0.1.0"

NAME = "cuda"
"""What formats call the device: the first GPU that this process may see (CUDA_VISIBLE_DEVICES)."""
