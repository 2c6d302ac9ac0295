"""What all tests share: a library that they compare with reports nothing to its vendor."""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
