"""What a person writes into files: how a model is to be placed."""

from collage_core.steering.placement_file import PlacementFile, placement_yaml, read_placement

__all__ = ["PlacementFile", "placement_yaml", "read_placement"]
