"""Supervised worker processes: whatever a vendor's library does in one costs the caller an exception, never
its own life.
"""

from collage_core.worker.errors import RemoteError, WorkerCrash, WorkerTimeout, exit_cause
from collage_core.worker.state import child_state
from collage_core.worker.worker import Worker

__all__ = ["RemoteError", "Worker", "WorkerCrash", "WorkerTimeout", "child_state", "exit_cause"]
