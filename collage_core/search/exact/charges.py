"""What each event in the life of a value charges, and how much one code can still cost beyond another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collage_core.search.exact.codes import Bools, CodeSpace

__all__ = ["ChargeTables", "Floats"]

Floats = npt.NDArray[np.float64]


class ChargeTables:
    """Charges of one value in milliseconds, over the axes of its `CodeSpace`.

    conversion_ms[F, F]: from, to; inf where nobody converts. output_format: in which the model returns it,
    paid when it is produced or arrives. has_producer: False for a model input, which crosses between no
    backends. crossing_ms: by the backend that produces it.
    """

    def __init__(
        self,
        space: CodeSpace,
        conversion_ms: Floats,
        output_format: int | None,
        has_producer: bool,
        crossing_ms: Mapping[int, float],
    ) -> None:
        self.space = space
        # What nobody can ask for costs nothing; otherwise it would count as a difference between two codes.
        self._conversion_ms = np.where(space.asked, conversion_ms, 0.0)
        self._output_format = output_format
        self._has_producer = has_producer
        # Of what a live value's code stands for [L], and of each way to write it [W].
        self._home_ms = np.array([crossing_ms.get(int(b), 0.0) for b in space.home])
        self._writing_ms = np.array([crossing_ms.get(b, 0.0) for _, b in space.writings])
        self._most_ms = float(self._writing_ms.max(initial=0.0))
        self._live_slack_ms: dict[int, Floats] = {}

    @cached_property
    def consume_ms(self) -> Floats:
        """[L, R]: a reader joins the live value."""
        charge = self._owed_ms[:, self.space.reading_formats]
        return charge + np.where(self.space.crosses_in, self._home_ms[:, None], 0.0)

    @cached_property
    def _owed_ms(self) -> Floats:
        """[L, F]: what a format that does not exist yet costs."""
        return np.where(self.space.made, 0.0, self._conversion_ms[self.space.source])

    @cached_property
    def produce_ms(self) -> Floats:
        """[P, W]: the producer is chosen; what its readers so far and the model's output need is
        converted.
        """
        wanted = self.space.wanted.copy()
        if self._output_format is not None:
            wanted[:, self._output_format] = True
        owed = self._conversion_ms[self.space.writing_formats]
        converted = np.where(wanted[:, None, :], owed, 0.0).sum(axis=2)
        charge: Floats = converted + np.where(self.space.crosses_out, self._writing_ms, 0.0)
        return charge

    def live_slack_ms(self, readers_left: int) -> Floats:
        """[L, L]: the most that code s can cost beyond code t, whatever up to `readers_left` further readers
        ask for.
        """
        readers_left = min(readers_left, len(self._conversion_ms))
        if readers_left not in self._live_slack_ms:
            extra = _positive_part(self._owed_ms[:, None, :], self._owed_ms[None, :, :])
            extra.sort(axis=2)
            most = extra[:, :, extra.shape[2] - readers_left :].sum(axis=2)
            crosses_ms = np.where(self.space.homes_differ, self._home_ms[:, None], 0.0)
            self._live_slack_ms[readers_left] = most + crosses_ms
        return self._live_slack_ms[readers_left]

    @cached_property
    def pending_slack_ms(self) -> Floats:
        """[P, P]: the most that code s can cost beyond code t, whatever the producer and further readers turn
        out to be.
        """
        wanted = self.space.wanted
        extra = self._worst_source_ms(wanted[:, None, :] & ~wanted[None, :, :])
        return extra + np.where(self.space.readers_differ, self._most_ms, 0.0)

    @cached_property
    def reading_slack_ms(self) -> Floats:
        """[R, R]: the most that a group that reads by signature s can cost beyond one that reads by t, all
        else equal.
        """
        formats = self.space.reading_formats
        worst_ms = self._conversion_ms[self.space.writing_formats].max(axis=0, initial=0.0)
        extra = np.where(formats[:, None] != formats, worst_ms[formats][:, None], 0.0)
        if not self._has_producer:
            return extra
        return extra + np.where(self.space.readings_differ, self._most_ms, 0.0)

    @cached_property
    def writing_slack_ms(self) -> Floats:
        """[W, W]: the most that a group that writes by signature s can cost beyond one that writes by t, all
        else equal.
        """
        owed = self._conversion_ms[self.space.writing_formats]
        extra: Floats = _positive_part(owed[:, None, :], owed[None, :, :]).sum(axis=2)
        if not self.space.readings:
            return extra
        return extra + np.where(self.space.writings_differ, self._writing_ms[:, None], 0.0)

    def _worst_source_ms(self, wanted: Bools) -> Floats:
        """[..., F] -> [...]: what the wanted formats cost at most, over all formats in which the value may be
        produced.
        """
        extra = np.zeros(wanted.shape[:-1])
        for source in {p for p, _ in self.space.writings}:
            extra = np.maximum(extra, np.where(wanted, self._conversion_ms[source], 0.0).sum(axis=-1))
        return extra


def _positive_part(minuend: Floats, subtrahend: Floats) -> Floats:
    """max(0, minuend - subtrahend), with inf - inf = 0."""
    is_more = minuend > subtrahend
    return np.subtract(minuend, subtrahend, out=np.zeros(is_more.shape), where=is_more)
