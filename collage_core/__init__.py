"""Collage places the operators of an ONNX model on the backends installed here, by measurement and search."""

import lazy_loader

# Each name is imported when it is asked for (docs/adr/0022): a worker starts without what only searches.
# They are listed in __init__.pyi, where type checkers look as well.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
