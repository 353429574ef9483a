"""The comparisons that more seeds would decide, by the predictive distribution of the present seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lit_transformers.records.plan import LookPlan
from reports.judge.comparisons import Comparison
from reports.judge.multiplicity import error_shares, look_shares
from reports.judge.statistics import LEVEL

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """The comparisons that a number of seeds decides: by name those that differ, those that are equal, and the rest.

    ``arms`` are those that need seeds beyond the number before this one.
    """

    seeds: int
    different: tuple[str, ...]
    equal: tuple[str, ...]
    undecided: tuple[str, ...]
    arms: frozenset[str]


def forecast(
    comparisons: Iterable[Comparison], counts: Sequence[int], looks: LookPlan | None, power: float
) -> tuple[Forecast, ...]:
    """Returns the comparisons that each number of seeds would decide with this power, by the predictive distribution of
    the present ones: a difference that was observed by luck is not taken as the truth.

    counts: ascending. With a plan of looks they are its looks, and each has its share of the error; else each is taken
    to be the number of seeds from the start. Comparisons without an interval are left out.
    """
    family = [one for one in comparisons if one.estimate and one.estimate.variances]
    shares = error_shares(len(family), next((one.margin for one in family), None))
    by_look = look_shares(looks) if looks else {}
    different = [one for one in family if one.verdict in ("better", "worse", "differs")]
    equal = [one for one in family if one.verdict == "equal"]
    forecasts = []
    for count in counts:
        error = LEVEL * by_look.get(count, 1.0)
        pending = [one for one in family if one not in different and one not in equal]
        for one in sorted(pending, key=_p):
            level = error * shares.difference / (len(family) - len(different))
            within = error * shares.equality / max(len(family) - len(equal), 1)
            assert one.estimate is not None
            shows = one.estimate.decided(count, level, one.margin, within, one.widening_at(count))
            if shows.different >= power:
                different.append(one)
            elif shows.equal >= power:
                equal.append(one)
        undecided = [one for one in pending if one not in different and one not in equal]
        arms = frozenset(arm for one in pending for arm in one.weights)
        forecasts.append(Forecast(count, _names(different), _names(equal), _names(undecided), arms))
    return tuple(forecasts)


def _names(comparisons: Iterable[Comparison]) -> tuple[str, ...]:
    return tuple(one.name for one in comparisons)


def _p(comparison: Comparison) -> float:
    """Returns the p-value of a difference: Holm's procedure rejects the smallest first."""
    return comparison.estimate.p if comparison.estimate and comparison.estimate.p is not None else 1.0
