"""Matches budgets: a free field of every arm is solved for, so that all arms have the baseline's budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from ablations.ablation import Match
from lit_transformers.config import Config, ConfigError
from lit_transformers.records.plan import Matched

__all__ = ["MatchedCost", "match_arms"]

DOUBLINGS = 40
NOISE = 5
"""Where the budget is measured, the search stops within this fraction of the tolerance: a fifth."""


class MatchedCost(Protocol):
    """The costs of a run, computed without training; None for a cost that is not known."""

    @property
    def parameters(self) -> int: ...
    @property
    def train_flops(self) -> float | None: ...
    @property
    def tokens(self) -> int | None: ...


Describe = Callable[[Any], MatchedCost]
Measure = Callable[[Config], float]

_MEASURES: dict[str, Callable[[MatchedCost], float | None]] = {
    "tokens": lambda cost: cost.tokens,
    "parameters": lambda cost: cost.parameters,
    "flops": lambda cost: cost.train_flops,
}


def match_arms(
    match: Match, configs: Mapping[str, Config], baseline: str, describe: Describe, measure: Measure | None = None
) -> tuple[dict[str, Config], dict[str, Matched]]:
    """Returns the configs with the free field solved for, and the budgets that they reach; the baseline stays as it is.

    measure: returns the amount that a run spends, for a budget that ``describe`` does not compute.
    Raises ConfigError for arms that differ and have no free field, or a field that does not move the budget.
    """

    @cache
    def spending(config: Config) -> float:
        budget = measure(config) if measure else _MEASURES[match.on](describe(config))
        if budget is None:
            raise ConfigError(f"the {match.on} of its runs are not known; match another budget", "match")
        return budget

    target = spending(configs[baseline])
    if not target:
        raise ConfigError(f"a run of the baseline spends no {match.on}; match another budget, or none", "match")
    solved, reached = dict(configs), {}
    for name, config in configs.items():
        try:
            if name != baseline and match.free and spending(config) != target:
                solved[name] = _solve(config, match, target, spending)
        except ConfigError as error:
            raise ConfigError(f"arm {name!r}: {error}", "match") from None
        reached[name] = Matched(target, spending(solved[name]))
        if not match.free and abs(reached[name].reached / target - 1) > match.allowed:
            raise ConfigError(
                f"arm {name!r} has {reached[name].reached:,.0f} {match.on}, the baseline {target:,.0f}; "
                f"name a field to solve for: Match({match.on!r}, free=...)",
                "match",
            )
    return solved, reached


def _solve(config: Config, match: Match, target: float, spending: Callable[[Config], float]) -> Config:
    """Returns the config whose free field brings it closest to the target; the budget must grow with the field."""
    path, step = str(match.free), match.step
    start = config.get(path)
    if not isinstance(start, int) or isinstance(start, bool):
        raise ConfigError(f"is solved for and must be an integer; it is {start!r}", path)

    def with_units(units: int) -> Config:
        try:
            return config.override({path: units * step})
        except ConfigError as error:
            raise ConfigError(f"{error}; Match(..., step=...) tries multiples of a number", path) from None

    low, high = _bracket(max(1, start // step), target, lambda units: spending(with_units(units)), path, match.on)
    while high - low > 1:
        middle = (low + high) // 2
        if match.measured and abs(spending(with_units(middle)) / target - 1) < match.allowed / NOISE:
            return with_units(middle)  # a closer match is hidden by noise, and every probe takes seconds
        low, high = (middle, high) if spending(with_units(middle)) <= target else (low, middle)
    return min(with_units(low), with_units(high), key=lambda candidate: abs(spending(candidate) - target))


def _bracket(start: int, target: float, spending: Callable[[int], float], path: str, budget: str) -> tuple[int, int]:
    """Returns two values with the target between them; both are 1 where even the smallest exceeds it."""
    low = high = start
    for _ in range(DOUBLINGS):
        if spending(high) >= target:
            break
        low, high = high, high * 2
        if spending(high) <= spending(low):
            raise ConfigError(f"a larger {path} does not give more {budget}", path)
    while low > 1 and spending(low) > target:
        low, high = low // 2, low
    return low, high
