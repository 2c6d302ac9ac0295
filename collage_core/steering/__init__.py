"""What a person writes into files: how a model is to be placed, and with which options."""

from collage_core.steering.placement_file import PlacementFile, placement_yaml, read_placement
from collage_core.steering.settings import SETTINGS, Kind, Setting, read_settings, settings_files

__all__ = [
    "SETTINGS",
    "Kind",
    "PlacementFile",
    "Setting",
    "placement_yaml",
    "read_placement",
    "read_settings",
    "settings_files",
]
