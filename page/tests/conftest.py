"""What the tests share is found by its name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
