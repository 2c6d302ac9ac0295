"""`torch.compile(model, backend="collage")`: what PyTorch hands to its compilers, placed by Collage."""

from collage_torch.backend import Part, collage, parts

__all__ = ["Part", "collage", "parts"]
