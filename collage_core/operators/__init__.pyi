from .table import OPERATORS

__all__ = ["OPERATORS"]
