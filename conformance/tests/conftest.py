"""Where these tests find the backends that they check."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
