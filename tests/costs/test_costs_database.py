"""The cost database against a dictionary, and against everything that happens to files."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy, default_path
from collage_core.costs.failures import infeasible, may_do_now
from collage_core.costs.record import DISTURBED, MOVED
from collage_core.errors import CostDatabaseError
from collage_core.worker import WorkerCrash, WorkerTimeout

floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | floats | st.text()
policies = st.builds(Policy, max_runs=st.integers(1, 3), evict_bytes=st.sampled_from([0, 1 << 20]))
keys = st.builds(
    CostKey,
    kind=st.sampled_from(["kernel", "conversion", "end_to_end"]),
    structure=st.sampled_from(["k1", "k2"]),
    variant=st.text(max_size=3),
    backend=st.sampled_from(["a", "b"]),
    environment=st.dictionaries(st.sampled_from(["cpu", "threads"]), st.text(max_size=3)),
    policy=policies,
)
amounts = st.floats(0, allow_nan=False, allow_infinity=False)
records = st.builds(
    CostRecord,
    status=st.sampled_from(["ok", "failed", "crashed"]),
    median_ms=st.none() | amounts,
    spread_ms=st.none() | amounts,
    runs=st.integers(0, 100),
    error=st.none() | amounts,
    seconds=amounts,
    reason=st.none() | st.text(),
    details=st.dictionaries(st.text(), json_values | st.lists(json_values)),
)
writes = st.lists(st.tuples(keys, records, st.integers(0, 5)), max_size=12)
Write = tuple[CostKey, CostRecord, int]


def key(structure: str = "k", backend: str = "a", **environment: str) -> CostKey:
    return CostKey("kernel", structure, "v", backend, environment, Policy())


def newest(written: list[Write]) -> dict[str, tuple[CostKey, CostRecord, float]]:
    """The oracle: of the records of one key the newest, of equally old ones the last."""
    result: dict[str, tuple[CostKey, CostRecord, float]] = {}
    for k, r, at in written:
        if k.digest not in result or at >= result[k.digest][2]:
            result[k.digest] = (k, r, at)
    return result


def contents(database: CostDatabase) -> dict[str, tuple[CostKey, CostRecord, float]]:
    return {c.key.digest: (c.key, c.record, c.created_at) for c in database.items()}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@settings(max_examples=40, deadline=None)
@given(writes)
def test_it_is_a_dictionary_in_which_the_newest_stays(written: list[Write]) -> None:
    with tempfile.TemporaryDirectory() as name, CostDatabase(Path(name) / "new" / "costs.sqlite") as database:
        for k, r, at in written:
            database.put(k, r, at)
        expected = newest(written)
        assert contents(database) == expected
        assert len(database) == len(expected)
        for k, r, _ in expected.values():
            assert database.get(k) == (None if may_do_now(r) else r)
        assert database.get(key("never measured")) is None
        with CostDatabase(database.path) as again:
            assert contents(again) == expected


@given(keys)
def test_a_digest_is_of_a_json_list(k: CostKey) -> None:
    """Costs that are stored are found under it for ever."""
    policy = [getattr(k.policy, name) for name in sorted(k.policy.__slots__)]
    content = [k.kind, k.structure, k.variant, k.backend, sorted(k.environment.items()), policy]
    assert k.digest == hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def test_what_had_too_little_is_tried_again_where_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, large = infeasible(WorkerTimeout(5.0)), infeasible(WorkerCrash("too large", "", 1 << 30))
    with CostDatabase(tmp_path / "costs") as database:
        database.put(key("late"), late)
        database.put(key("large"), large)
        for seconds, mebibytes, expected in (
            ("5", "1024", (late, large)),
            ("6", "1100", (None, large)),  # some pages more are no more
            ("6", "1130", (None, None)),
        ):
            monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", seconds)
            monkeypatch.setenv("COLLAGE_WORKER_MEMORY_MIB", mebibytes)
            assert (database.get(key("late")), database.get(key("large"))) == expected
        assert len(contents(database)) == 2


@settings(max_examples=20, deadline=None)
@given(writes, writes)
def test_importing_merges_in_any_order_and_twice(first: list[Write], second: list[Write]) -> None:
    second = [(k, r, at + 10 if at == 5 else -at - 1) for k, r, at in second]  # no ties between the two
    with tempfile.TemporaryDirectory() as name:
        a, b, ab, ba = (CostDatabase(Path(name) / n) for n in ("a", "b", "ab", "ba"))
        for database, written in ((a, first), (b, second)):
            for k, r, at in written:
                database.put(k, r, at)
        for target, sources in ((ab, (a, b)), (ba, (b, a))):
            for source in (*sources, *sources):
                lines = list(source.export())
                assert all("\n" not in line for line in lines)
                target.import_([line + "\n" for line in lines] + ["\n"])
        assert contents(ab) == contents(ba) == newest(first + second)
        for database in (a, b, ab, ba):
            database.close()


def test_a_bad_line_imports_nothing(tmp_path: Path) -> None:
    with CostDatabase(tmp_path / "a") as a, CostDatabase(tmp_path / "b") as b:
        a.put(key(), CostRecord("ok", 1.0))
        good = next(a.export())
        rubbish = [
            ("median_ms", "x"),
            ("median_ms", -1.0),
            ("median_ms", True),
            ("spread_ms", []),
            ("runs", "a"),
            ("runs", None),
            ("seconds", None),
            ("error", "x"),
            ("status", "weird"),
            ("reason", 5),
            ("details", []),
            ("details", "s"),
        ]
        whole = json.loads(good)
        spoilt = [json.dumps({**whole, "record": {**whole["record"], k: v}}) for k, v in rubbish]
        renamed = good.replace("created_at", "when"), good.replace("runs", "laps")
        for bad in ("{", "[]", "{}", "1", *renamed, *spoilt):
            with pytest.raises(CostDatabaseError, match=r"^line 2 is no exported cost") as caught:
                b.import_([good, bad])
            assert "\n" not in str(caught.value)
        assert len(b) == 0
        assert b.import_([good]) == 1
        assert json.loads(good)["record"]["median_ms"] == 1.0


def test_prune_deletes_what_meets_all_conditions(tmp_path: Path) -> None:
    def filled() -> CostDatabase:
        database = CostDatabase(tmp_path / "costs")
        now = time.time()
        for structure, backend, cpu, age_s in (
            ("old", "a", "x", 1000),
            ("new", "a", "x", 0),
            ("old", "b", "x", 1000),
            ("new", "b", "y", 0),
        ):
            database.put(key(structure, backend, cpu=cpu), CostRecord("ok", 1.0), now - age_s)
        return database

    def left(database: CostDatabase) -> list[tuple[str, str]]:
        found = sorted((c.key.structure, c.key.backend) for c in database.items())
        database.close()
        database.path.unlink()
        return found

    database = filled()
    assert database.prune() == 0
    assert len(database) == 4
    assert database.prune(older_than_s=500) == 2
    assert left(database) == [("new", "a"), ("new", "b")]
    database = filled()
    assert database.prune(older_than_s=500, backend="A") == 1
    assert left(database) == [("new", "a"), ("new", "b"), ("old", "b")]
    database = filled()
    assert database.prune(current=lambda key: key.environment == {"cpu": "x"}) == 1
    assert left(database) == [("new", "a"), ("old", "a"), ("old", "b")]
    database = filled()
    database.put(key("failed", "a"), CostRecord("crashed"))
    database.put(key("answer", "a"), CostRecord("ok", details={"failed": {"digest": "it crashed"}}))
    database.put(key("sure", "a"), CostRecord("ok", details={"failed": {}}))
    assert database.prune(infeasible=True) == 2, "what failed, and what was found because it had"
    assert len(database) == 5
    database.put(key("moved", "a"), CostRecord("ok", 1.0, details={MOVED: True}))
    database.put(key("disturbed", "a"), CostRecord("ok", 1.0, details={DISTURBED: True}))
    assert database.prune(disturbed=True, backend="b") == 0
    assert database.prune(disturbed=True) == 2
    assert len(database) == 5


WRITER = """
import sys
from pathlib import Path
from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy
path, name, count = sys.argv[1:]
with CostDatabase(Path(path)) as database:
    for i in range(int(count)):
        for structure in (f"{name} {i}", "shared"):
            database.put(CostKey("kernel", structure, "", "a", {}, Policy()), CostRecord("ok", float(i)))
        print(i, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    processes = [writer(path, f"p{n}", 60) for n in range(3)]
    with CostDatabase(path) as database:

        def put(n: int) -> None:
            for i in range(60):
                database.put(key(f"t{n} {i}"), CostRecord("ok", 1.0))
                assert database.get(key(f"t{n} {i}")) is not None

        threads = [threading.Thread(target=put, args=[n]) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in processes:
            process.communicate(timeout=60)
            assert process.returncode == 0
        assert len(database) == 5 * 60 + 1


def test_what_was_put_before_a_kill_is_there(tmp_path: Path) -> None:
    process = writer(tmp_path / "costs", "p", 1_000_000)
    assert process.stdout is not None
    last = ""
    for _ in range(100):
        last = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with CostDatabase(tmp_path / "costs") as database:
        k = CostKey("kernel", f"p {last.strip()}", "", "a", {}, Policy())
        assert database.get(k) == CostRecord("ok", float(last))


def refused(path: Path, message: str) -> None:
    with pytest.raises(CostDatabaseError, match=message) as caught:
        CostDatabase(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    CostDatabase(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    refused(path, "newer version 7")
    assert path.read_bytes() == before


def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    path.write_bytes(b"these are no costs" * 1000)
    refused(path, "not a database; move the file away")
    assert path.read_bytes() == b"these are no costs" * 1000
    refused(tmp_path, "cannot be opened")
    refused(path / "below a file", "cannot be opened")


def test_damage_inside_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    with CostDatabase(path) as database:
        for i in range(300):
            database.put(key(str(i)), CostRecord("ok", 1.0))
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(CostDatabaseError, match=r"malformed|not a database"), CostDatabase(path) as database:
        list(database.items())
    connection = sqlite3.connect(tmp_path / "other")
    CostDatabase(tmp_path / "other").close()
    connection.execute("INSERT INTO costs VALUES (?, '{}', '{}', 0)", [key().digest])
    connection.commit()
    connection.close()
    with CostDatabase(tmp_path / "other") as database:
        for read in (lambda: database.get(key()), lambda: list(database.items())):
            with pytest.raises(CostDatabaseError, match="damaged row"):
                read()


def test_a_read_only_file_is_refused(folder: Path) -> None:
    path = folder / "costs"
    with CostDatabase(path) as database:
        database.put(key(), CostRecord("ok", 1.0))
    path.chmod(0o444)
    folder.chmod(0o555)
    # The superuser may write anywhere; for files, a Linux thread can be somebody else for a while.
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        libc.setfsuid(65534)
    try:
        refused(path, "readonly|read-only|unable to open")
        refused(folder / "new", "unable to open")
        refused(folder / "new" / "costs", "cannot be opened")
    finally:
        libc.setfsuid(os.geteuid())
        folder.chmod(0o755)


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = CostDatabase(tmp_path / "costs")
    database.close()
    database.close()
    with pytest.raises(CostDatabaseError, match="closed"):
        database.get(key())


def test_the_default_path_follows_the_environment(tmp_path: Path) -> None:
    with patch.dict(os.environ, {"HOME": str(tmp_path), "COLLAGE_HOME": "", "XDG_CACHE_HOME": ""}):
        assert default_path() == tmp_path / ".cache" / "collage" / "costs.sqlite"
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
        assert default_path() == tmp_path / "xdg" / "collage" / "costs.sqlite"
        os.environ["COLLAGE_HOME"] = str(tmp_path / "home")
        with CostDatabase() as database:
            assert database.path == tmp_path / "home" / "costs.sqlite"
            assert database.path.exists()


def test_a_file_that_others_are_beginning_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself does not wait before it changes the journal: two that begin one at once would fail."""
    path = tmp_path / "c.sqlite"
    with CostDatabase(path) as database:
        database.put(key(), CostRecord("ok", 1.0))
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    with CostDatabase(path) as database:
        assert database.get(key()) is not None
    timer.join()
    other.close()
