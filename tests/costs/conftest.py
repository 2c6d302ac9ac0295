"""Makes the plugins of these tests importable here and, as workers get this process's path, in workers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "plugins"))
