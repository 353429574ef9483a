"""Cleaning of pairs: which are read, and which are left out or cut, counted by reason."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Split
from datamodules.core.errors import DataError
from datamodules.pairs.source import Lengths, Longest, Pairs

__all__ = ["Cleaned", "Cleaning", "CutShares", "Overlong"]

Overlong = Literal["cut", "drop", "refuse"]
Mask = npt.NDArray[np.bool_]


class CutShares(NamedTuple):
    """The share of the texts of one side that a limit cuts, and the share of all their symbols that it removes."""

    examples: float
    symbols: float


class Cleaned(NamedTuple):
    """ordinals: of the pairs that are read; None for all. counts: numbers of pairs that are read, left out or cut. cut:
    the shares that the limits cut from the pairs that are read, by side; empty where nothing can be too long."""

    ordinals: npt.NDArray[np.int64] | None
    counts: dict[str, int]
    cut: dict[str, CutShares]

    def __str__(self) -> str:
        return ", ".join(
            f"{count:,} {reason}{self._shares(reason)}"
            for reason, count in self.counts.items()
            if count or reason == "read"
        )

    def _shares(self, reason: str) -> str:
        """Returns the shares that follow the number of texts that were cut, in parentheses."""
        shares = self.cut.get(reason.removesuffix(" cut"))
        return f" ({shares.examples:.1%} of them, {shares.symbols:.1%} of their symbols)" if shares else ""


class Cleaning(NamedTuple):
    """How pairs are cleaned: fully for training; in evaluation none is left out, and texts that are too long are
    cut."""

    longest: Longest
    ratio: float | None
    overlong: Overlong

    def clean(self, pairs: Pairs, split: Split, dropping: bool) -> Cleaned:
        """Returns the pairs of a split that are read. dropping: whether any may be left out. Raises DataError."""
        lengths, count = pairs.lengths(split), pairs.count(split)
        if lengths is None:
            return Cleaned(None, {"read": count}, {})
        long_source, long_target = lengths.source >= self.longest.source, lengths.target >= self.longest.target
        if not dropping:
            every = np.ones(count, np.bool_)
            return Cleaned(None, {"read": count} | _cut_counts(long_source, long_target), self._cut(lengths, every))
        left_out = {"empty on one side": (lengths.source == 0) | (lengths.target == 0)}
        if self.ratio is not None:
            left_out[f"of lengths further apart than {self.ratio:g} to 1"] = _exceeds_ratio(lengths, self.ratio)
        if self.overlong == "drop":
            left_out["too long"] = long_source | long_target
        keep, counts = np.ones(count, np.bool_), {"read": count}
        for reason, mask in left_out.items():
            counts[f"left out, {reason}"] = int((keep & mask).sum())
            keep &= ~mask
        if self.overlong == "refuse":
            self._refuse(pairs, split, lengths, keep & (long_source | long_target))
        if self.overlong == "cut":
            counts |= _cut_counts(keep & long_source, keep & long_target)
        if not keep.any():
            reasons = "; ".join(f"{number:,} {outcome}" for outcome, number in counts.items() if number)
            remedy = "clean less, or correct data.source.path"
            raise DataError(f"data.source: no pair of {split} is left ({reasons}); {remedy}")
        cut = self._cut(lengths, keep) if self.overlong == "cut" else {}
        return Cleaned(None if keep.all() else np.flatnonzero(keep), counts, cut)

    def _cut(self, lengths: Lengths, read: Mask) -> dict[str, CutShares]:
        """Returns the shares that the limits cut from the pairs that are read, by side. A limit counts the boundary
        too, which a source that is cut still ends with and a target that is cut does not."""
        rooms = {"sources": self.longest.source - 1, "targets": self.longest.target}
        shares = {}
        for (side, room), sizes, limit in zip(rooms.items(), lengths, self.longest, strict=True):
            chosen = sizes[read]
            lost = int(np.maximum(chosen - room, 0).sum())
            shares[side] = CutShares(
                float((chosen >= limit).sum()) / max(len(chosen), 1), lost / max(int(chosen.sum()), 1)
            )
        return shares

    def _refuse(self, pairs: Pairs, split: Split, lengths: Lengths, long: Mask) -> None:
        """Raises DataError, which names the first pair that is too long, where there is one."""
        if not long.any():
            return
        first = int(np.flatnonzero(long)[0])
        side = "source" if lengths.source[first] >= self.longest.source else "target"
        length, limit = int(lengths._asdict()[side][first]) + 1, self.longest._asdict()[side]
        raise DataError(
            f"{pairs.name(split, first)}: a {side} of {length:,} symbols with its boundary, more than {limit:,} "
            f"({int(long.sum()):,} such pairs); set data.longest_{side}, or data.overlong to cut or drop"
        )


def _cut_counts(long_source: Mask, long_target: Mask) -> dict[str, int]:
    """Returns how many sources and targets are cut."""
    return {"sources cut": int(long_source.sum()), "targets cut": int(long_target.sum())}


def _exceeds_ratio(lengths: Lengths, ratio: float) -> Mask:
    """Returns a mask of the pairs whose longer side has more than ``ratio`` times the symbols of the shorter."""
    longer, shorter = (choose(lengths.source, lengths.target) for choose in (np.maximum, np.minimum))
    mask: Mask = longer > ratio * shorter
    return mask
