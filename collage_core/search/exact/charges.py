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

    conversion_ms[F, F]: the last hop on the way from one format to another; inf where none leads there. All
    other hops of it are in the space's `ways`. output_format: in which the model returns it,
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
        self._hop_ms = np.where(space.asked, conversion_ms, 0.0)
        self._way_ms = _along(space.ways, self._hop_ms)
        self._is_direct = bool((space.ways.sum(axis=2) == 1).all())
        self._needed = np.zeros(len(conversion_ms), bool)
        self._needed[[q for q, _ in space.readings]] = True
        if output_format is not None:
            self._needed[output_format] = True
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
        """[L, F]: what a format costs, with those on the way that do not exist yet."""
        space = self.space
        owed = np.where(space.made, 0.0, self._hop_ms[space.source])
        return _along(space.ways[space.source], owed)

    @cached_property
    def produce_ms(self) -> Floats:
        """[P, W]: the producer is chosen; what its readers so far and the model's output need is
        converted.
        """
        wanted = self.space.wanted.copy()
        if self._output_format is not None:
            wanted[:, self._output_format] = True
        sources = self.space.writing_formats
        made = (wanted[:, None, :, None] & self.space.ways[sources]).any(axis=2)
        converted = np.where(made, self._hop_ms[sources], 0.0).sum(axis=2)
        charge: Floats = converted + np.where(self.space.crosses_out, self._writing_ms, 0.0)
        return charge

    def live_slack_ms(self, readers_left: int) -> Floats:
        """[L, L]: the most that code s can cost beyond code t, whatever up to `readers_left` further readers
        ask for.
        """
        readers_left = min(readers_left, len(self._hop_ms))
        if readers_left not in self._live_slack_ms:
            if self._is_direct:
                extra = _positive_part(self._owed_ms[:, None, :], self._owed_ms[None, :, :])
                extra.sort(axis=2)
                most = extra[:, :, extra.shape[2] - readers_left :].sum(axis=2)
            else:
                most = self._shared_slack_ms if readers_left else np.zeros(2 * (len(self.space.source),))
            crosses_ms = np.where(self.space.homes_differ, self._home_ms[:, None], 0.0)
            self._live_slack_ms[readers_left] = most + crosses_ms
        return self._live_slack_ms[readers_left]

    @cached_property
    def _shared_slack_ms(self) -> Floats:
        """[L, L]: the same where ways share hops, whatever is asked for. Of one source both make the same:
        what s has to make, and t has made. Of two sources: all that s has to make for what t can be asked.
        """
        space, source = self.space, self.space.source
        missing_ms = np.where(space.made, 0.0, self._hop_ms[source])
        askable = self._needed & np.isfinite(self._owed_ms)
        made = np.einsum("tq,sqf->stf", askable, space.ways[source]) > 0
        others_ms = np.where(made, missing_ms[:, None, :], 0.0).sum(axis=2)
        on_way = np.asarray((self._needed[:, None] & space.ways[source]).any(axis=1))
        alike = on_way[:, None, :] & space.made[None, :, :]
        same_ms = np.where(alike, missing_ms[:, None, :], 0.0).sum(axis=2)
        slack_ms: Floats = np.where(source[:, None] == source, same_ms, others_ms)
        return slack_ms

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
        worst_ms = self._way_ms[self.space.writing_formats].max(axis=0, initial=0.0)
        extra = np.where(formats[:, None] != formats, worst_ms[formats][:, None], 0.0)
        if not self._has_producer:
            return extra
        return extra + np.where(self.space.readings_differ, self._most_ms, 0.0)

    @cached_property
    def writing_slack_ms(self) -> Floats:
        """[W, W]: the most that a group that writes by signature s can cost beyond one that writes by t, all
        else equal.
        """
        sources = self.space.writing_formats
        way_ms = self._way_ms[sources]
        if self._is_direct:
            extra: Floats = _positive_part(way_ms[:, None, :], way_ms[None, :, :]).sum(axis=2)
        else:
            askable = self._needed & np.isfinite(way_ms)
            made = np.einsum("tq,sqf->stf", askable, self.space.ways[sources]) > 0
            extra = np.where(made, self._hop_ms[sources][:, None, :], 0.0).sum(axis=2)
            extra[sources[:, None] == sources] = 0.0
        if not self.space.readings:
            return extra
        return extra + np.where(self.space.writings_differ, self._writing_ms[:, None], 0.0)

    def _worst_source_ms(self, wanted: Bools) -> Floats:
        """[..., F] -> [...]: what the wanted formats cost at most, over all formats in which the value may be
        produced.
        """
        extra = np.zeros(wanted.shape[:-1])
        for source in {p for p, _ in self.space.writings}:
            extra = np.maximum(extra, np.where(wanted, self._way_ms[source], 0.0).sum(axis=-1))
        return extra


def _along(ways: Bools, hop_ms: Floats) -> Floats:
    """[..., F, F], [..., F] -> [..., F]: hops added up along the way to each format."""
    found: Floats = np.where(ways, hop_ms[..., None, :], 0.0).sum(axis=-1)
    return found


def _positive_part(minuend: Floats, subtrahend: Floats) -> Floats:
    """max(0, minuend - subtrahend), with inf - inf = 0."""
    is_more = minuend > subtrahend
    return np.subtract(minuend, subtrahend, out=np.zeros(is_more.shape), where=is_more)
