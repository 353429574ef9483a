"""Which pairs are read, and what is left out or cut, counted by reason."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.documents import Split
from datamodules.errors import DataError
from datamodules.pairs_source import Lengths, Longest, Pairs

__all__ = ["Cleaned", "Cleaning", "Overlong"]

Overlong = Literal["cut", "drop", "refuse"]
Mask = npt.NDArray[np.bool_]


class Cleaned(NamedTuple):
    """ordinals: of the pairs that are read; None for all. counts: pairs by what became of them."""

    ordinals: npt.NDArray[np.int64] | None
    counts: dict[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in self.counts.items() if count or what == "read")


class Cleaning(NamedTuple):
    """How pairs are cleaned: all for training; in evaluation nothing is dropped, and what is too long is cut."""

    longest: Longest
    ratio: float | None
    overlong: Overlong

    def clean(self, pairs: Pairs, split: Split, dropping: bool) -> Cleaned:
        """The pairs of a split that are read. dropping: whether any may be left out. Raises DataError."""
        lengths, count = pairs.lengths(split), pairs.count(split)
        if lengths is None:
            return Cleaned(None, {"read": count})
        long_source, long_target = lengths.source >= self.longest.source, lengths.target >= self.longest.target
        if not dropping:
            return Cleaned(None, {"read": count} | _cut(long_source, long_target))
        left_out = {"empty on one side": (lengths.source == 0) | (lengths.target == 0)}
        if self.ratio is not None:
            left_out[f"of lengths further apart than {self.ratio:g} to 1"] = _apart(lengths, self.ratio)
        if self.overlong == "drop":
            left_out["too long"] = long_source | long_target
        kept, counts = np.ones(count, np.bool_), {"read": count}
        for reason, mask in left_out.items():
            counts[f"left out, {reason}"] = int((kept & mask).sum())
            kept &= ~mask
        if self.overlong == "refuse":
            self._refuse(pairs, split, lengths, kept & (long_source | long_target))
        if self.overlong == "cut":
            counts |= _cut(kept & long_source, kept & long_target)
        if not kept.any():
            reasons = "; ".join(f"{many:,} {what}" for what, many in counts.items() if many)
            raise DataError(f"source: no pair of {split} is left ({reasons}); clean less, or correct source.path")
        return Cleaned(None if kept.all() else np.flatnonzero(kept), counts)

    def _refuse(self, pairs: Pairs, split: Split, lengths: Lengths, long: Mask) -> None:
        if not long.any():
            return
        first = int(np.flatnonzero(long)[0])
        side = "source" if lengths.source[first] >= self.longest.source else "target"
        length, limit = int(lengths._asdict()[side][first]) + 1, self.longest._asdict()[side]
        raise DataError(
            f"{pairs.name(split, first)}: a {side} of {length:,} symbols with its boundary, more than {limit:,} "
            f"({int(long.sum()):,} such pairs); set data.longest_{side}, or data.overlong to cut or drop"
        )


def _cut(long_source: Mask, long_target: Mask) -> dict[str, int]:
    return {"sources cut": int(long_source.sum()), "targets cut": int(long_target.sum())}


def _apart(lengths: Lengths, ratio: float) -> Mask:
    """Where the longer side has more than ``ratio`` times the symbols of the shorter."""
    longer, shorter = (choose(lengths.source, lengths.target) for choose in (np.maximum, np.minimum))
    apart: Mask = longer > ratio * shorter
    return apart
