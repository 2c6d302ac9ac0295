"""The database of measured costs."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from collage_core import clock
from collage_core.costs.failures import may_do_now
from collage_core.costs.record import DISTURBED, MOVED, STATUSES, CostKey, CostRecord, Policy
from collage_core.errors import CostDatabaseError
from collage_core.folders import user_folder

__all__ = ["CostDatabase", "StoredCost", "default_path"]

_T = TypeVar("_T")
_SCHEMA_VERSION = 2
_BUSY_MS = 30_000
_CREATE = """
CREATE TABLE IF NOT EXISTS costs (
    digest TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    record TEXT NOT NULL,
    created_at REAL NOT NULL
) WITHOUT ROWID
"""
_OURS = {"costs", "sqlite_autoindex_costs_1", "sqlite_stat1"}
_NO_COST = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading something else as a cost raises."""
_ENTRIES = frozenset(f.name for f in fields(CostRecord))
_MAY_LACK = ("median_ms", "spread_ms", "error")
_PUT = """
INSERT INTO costs VALUES (:digest, :key, :record, :created_at)
ON CONFLICT (digest) DO UPDATE SET key = excluded.key, record = excluded.record, created_at =
excluded.created_at WHERE excluded.created_at >= costs.created_at
"""


def default_path() -> Path:
    """costs.sqlite in `user_folder()`."""
    return user_folder() / "costs.sqlite"


@dataclass(frozen=True, slots=True)
class StoredCost:
    """A row of the database. created_at: seconds since 1970."""

    key: CostKey
    record: CostRecord
    created_at: float


class CostDatabase:
    """Costs by key, in one SQLite file (WAL) that any number of processes and threads may read and write at
    once.

    path: None for `default_path()`; folders are made. may_be_read_only: where nothing can be written there,
    what is known is read, and what is put is forgotten with this object (`is_kept`). Every method raises
    CostDatabaseError, with one line that names the file, when it cannot be opened, read or written, or was
    written by a newer version.
    """

    def __init__(self, path: Path | str | None = None, *, may_be_read_only: bool = False) -> None:
        self.path = default_path() if path is None else Path(path)
        self._lock = threading.Lock()
        with self._errors("cannot be opened"):
            if self.path.exists() and not self.path.is_file():
                raise OSError("no regular file")  # SQLite would leave a journal beside it
            self.is_kept = not (may_be_read_only and _is_read_only(self.path))
            if self.is_kept:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path if self.is_kept else ":memory:",
                timeout=_BUSY_MS / 1000,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            if not self.is_kept and self.path.exists():
                self._copy()
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def _copy(self) -> None:
        """What is known there, into memory. What others have written last may lie beside the file, in the log
        that SQLite reads with it; where there is none, SQLite is told that nobody writes.
        """
        beside = self.path.with_name(f"{self.path.name}-wal")
        is_all = not beside.exists() or not beside.stat().st_size
        way = "mode=ro&immutable=1" if is_all else "mode=ro"
        uri = f"{self.path.absolute().as_uri()}?{way}"
        with self._errors("cannot be read"), closing(sqlite3.connect(uri, uri=True)) as source:
            source.backup(self._connection)

    def _open(self) -> None:
        with self._errors("cannot be opened"):
            self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            # Before the version: whoever makes the table at this moment gives the file its version with it.
            tables = {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master")}
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _SCHEMA_VERSION:
                known = f"this Collage reads up to {_SCHEMA_VERSION}"
                raise CostDatabaseError(f"cost database {self.path} has the newer version {version}; {known}")
            if tables and (version == 0 or not tables <= _OURS):
                raise CostDatabaseError(f"{self.path} is a database of something else, not of costs")
            self._write_ahead()
            self._connection.execute("PRAGMA synchronous = NORMAL")
            with clock.unpaused():
                self._connection.execute("BEGIN IMMEDIATE")
                # Once more: somebody else may have begun the file anew while this process waited.
                version = self._connection.execute("PRAGMA user_version").fetchone()[0]
                if version < _SCHEMA_VERSION:  # what was measured in other ways is of no use now
                    self._connection.execute("DROP TABLE IF EXISTS costs")
                self._connection.execute(_CREATE)
                self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
                self._connection.execute("COMMIT")

    def _write_ahead(self) -> None:
        """SQLite does not wait for others (`busy_timeout`) when it changes the mode of a file."""
        end_s = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end_s:
                    raise
                time.sleep(0.01)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise CostDatabaseError(f"cost database {self.path} {what}: {_cause(error)}") from error

    def get(self, key: CostKey) -> CostRecord | None:
        """The record of `key`; None as with `stored`."""
        stored = self.stored(key)
        return None if stored is None else stored.record

    def stored(self, key: CostKey) -> StoredCost | None:
        """The record of `key`, and when it was measured; None if it never was, or failed for want of time or
        memory and would have more of it now. CollageError where the environment says how much, unreadably.
        """
        with self._lock, self._errors("cannot be read"):
            row = self._connection.execute(
                "SELECT record, created_at FROM costs WHERE digest = ?", [key.digest]
            ).fetchone()
        found = None if row is None else StoredCost(key, self._record(row[0]), row[1])
        return None if found is None or may_do_now(found.record) else found

    def put(self, key: CostKey, record: CostRecord, created_at: float | None = None) -> None:
        """Store a record at once; it replaces an older one of the same key. created_at: None for now."""
        with self._lock, clock.unpaused(), self._errors("cannot be written"):
            self._connection.execute(
                _PUT, _row(key, record, time.time() if created_at is None else created_at)
            )

    def items(self) -> Iterator[StoredCost]:
        """All costs, oldest first."""
        with self._lock, self._errors("cannot be read"):
            rows = self._connection.execute(
                "SELECT key, record, created_at FROM costs ORDER BY created_at, digest"
            ).fetchall()
        for key, record, created_at in rows:
            yield StoredCost(self._key(key), self._record(record), created_at)

    def export(self) -> Iterator[str]:
        """All costs as JSON lines (without line ends): {"key", "record", "created_at"}."""
        for cost in self.items():
            yield json.dumps(
                {"key": _json(cost.key), "record": _json(cost.record), "created_at": cost.created_at},
                sort_keys=True,
            )

    def import_(self, lines: Iterable[str]) -> int:
        """Merge exported lines, all or none; of two records of one key the newer stays. Returns how many were
        stored.
        """
        rows = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                key, record = _key_of(data["key"]), _checked(_record_of(data["record"]))
                rows.append(_row(key, record, float(data["created_at"])))
            except _NO_COST as error:
                said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise CostDatabaseError(f"line {number} is no exported cost: {said}") from None
        return self._write(_PUT, rows)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        backend: str | None = None,
        current: Callable[[CostKey], bool] | None = None,
        infeasible: bool = False,
        disturbed: bool = False,
    ) -> int:
        """Delete costs that meet *all* the given conditions; returns how many. Without conditions nothing is
        deleted.

        older_than_s: measured longer ago than that. backend: of that backend. current: of keys for which it
        says no. infeasible: of candidates that failed, and answers found after something had: the next
        run then tries again. disturbed: taken while the processors were moved, in every attempt, or while
        other work had them in too many of its runs.
        """
        if older_than_s is None and backend is None and current is None and not (infeasible or disturbed):
            return 0
        limit = None if older_than_s is None else time.time() - older_than_s
        doomed = [
            {"digest": c.key.digest, "created_at": c.created_at}
            for c in self.items()
            if (limit is None or c.created_at < limit)
            and (backend is None or c.key.backend.lower() == backend.lower())
            and not (infeasible and c.record.ok and not c.record.details.get("failed"))
            and (not disturbed or any(c.record.details.get(d) for d in (DISTURBED, MOVED)))
            and (current is None or not current(c.key))
        ]
        return self._write("DELETE FROM costs WHERE digest = :digest AND created_at = :created_at", doomed)

    def _write(self, statement: str, rows: list[dict[str, object]]) -> int:
        with self._lock, clock.unpaused(), self._errors("cannot be written"):
            before = self._connection.total_changes
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return self._connection.total_changes - before

    def __len__(self) -> int:
        with self._lock, self._errors("cannot be read"):
            return int(self._connection.execute("SELECT count(*) FROM costs").fetchone()[0])

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, text: str) -> CostKey:
        return self._parsed(text, _key_of)

    def _record(self, text: str) -> CostRecord:
        return self._parsed(text, _record_of)

    def _parsed(self, text: str, parse: Callable[[dict[str, Any]], _T]) -> _T:
        try:
            return parse(json.loads(text))
        except _NO_COST as error:
            what = f"holds a damaged row ({error}); move the file away to start afresh"
            raise CostDatabaseError(f"cost database {self.path} {what}") from None


def _is_read_only(path: Path) -> bool:
    """Whether the file, or its folder, where SQLite puts others beside it, may not be written."""
    if path.exists() and not os.access(path, os.W_OK):
        return True
    there = next(p for p in path.absolute().parents if p.exists())
    return not os.access(there, os.W_OK)


def _row(key: CostKey, record: CostRecord, created_at: float) -> dict[str, object]:
    return {
        "digest": key.digest,
        "key": json.dumps(_json(key), sort_keys=True),
        "record": json.dumps(_json(record), sort_keys=True, allow_nan=False),
        "created_at": created_at,
    }


def _json(value: CostKey | CostRecord) -> dict[str, object]:
    entries = {f.name: getattr(value, f.name) for f in fields(value)}
    return {
        k: asdict(v) if isinstance(v, Policy) else dict(v) if isinstance(v, Mapping) else v
        for k, v in entries.items()
    }


def _key_of(data: dict[str, Any]) -> CostKey:
    return CostKey(**{**data, "policy": Policy(**data["policy"])})


def _record_of(data: dict[str, Any]) -> CostRecord:
    if unknown := data.keys() - _ENTRIES:
        raise ValueError(f"unknown entries {sorted(unknown)}")
    return CostRecord(**data)


def _checked(record: CostRecord) -> CostRecord:
    """The same. ValueError where somebody else has written what no measurement says."""
    if record.status not in STATUSES:
        raise ValueError(f"status {record.status!r} is none; known: {', '.join(STATUSES)}")
    if not isinstance(record.details, dict) or not isinstance(record.reason, str | None):
        raise ValueError("details are no entries by name, or the reason is no text")
    for name in ("median_ms", "spread_ms", "error", "seconds", "runs"):
        value = getattr(record, name)
        is_number = type(value) in (int, float) and value >= 0
        if not is_number and not (value is None and name in _MAY_LACK):
            raise ValueError(f"{name} is {value!r}, and no number from 0 on")
    return record


def _cause(error: Exception) -> str:
    text = str(error)
    if "UTF-8" in text:  # behind it stands the whole row
        text = "a row of it is damaged"
    if any(said in text for said in ("not a database", "malformed", "damaged")):
        return f"{text}; move the file away to start afresh"
    return text
