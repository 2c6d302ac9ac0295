"""How many sessions serve requests that are asked at a time."""

from __future__ import annotations

import pytest

from collage_core.errors import CollageError
from collage_core.serving import MOST_AT_A_TIME, Serving, ways_to_serve


@pytest.mark.parametrize("concurrency", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize("processors", [1, 2, 3, 4, 6, 8, 12])
def test_a_way_is_left_out_only_where_another_has_as_many_threads_and_more_sessions(
    concurrency: int, processors: int
) -> None:
    ways = ways_to_serve(concurrency, processors)
    for threads in range(1, processors + 1):
        for sessions in range(1, min(concurrency, processors // threads) + 1):
            assert any(t >= threads and w.sessions >= sessions for t, w in ways.items())
    for threads, serving in ways.items():
        assert serving.concurrency == concurrency
        assert serving.sessions * threads <= processors
        others = [(t, w.sessions) for t, w in ways.items() if t != threads]
        assert not any(t >= threads and s >= serving.sessions for t, s in others)
        assert serving == Serving.of(concurrency, threads, processors)
    counts = [w.sessions for w in ways.values()]
    assert counts == sorted(counts, reverse=True)


def test_it_is_told_in_words() -> None:
    assert Serving(2, 2).text(1) == "2 sessions of 1 thread"
    assert Serving(2, 1).text(2) == "1 session of 2 threads"


@pytest.mark.parametrize("concurrency", [0, -1, MOST_AT_A_TIME + 1, 1.5, True, "2"])
def test_what_is_no_number_of_requests_is_refused(concurrency: int) -> None:
    with pytest.raises(CollageError, match="concurrency must be 1 to 1024, not"):
        Serving(concurrency, 1)


@pytest.mark.parametrize("sessions", [0, 3, 1.0])
def test_there_are_no_more_sessions_than_requests(sessions: int) -> None:
    with pytest.raises(CollageError, match="sessions must be 1 to 2, not"):
        Serving(2, sessions)
