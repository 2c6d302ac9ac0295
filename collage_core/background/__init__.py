"""Better placements looked for while a session answers, whenever nobody asks; docs/adr/0048."""

from collage_core.background.improving import Improving
from collage_core.background.options import Background, BackgroundState

__all__ = ["Background", "BackgroundState", "Improving"]
