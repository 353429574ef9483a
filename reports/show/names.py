"""The names of comparisons that are shown together: the part that all of them share stands above them, once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lit_transformers.records.labels import are_words
from lit_transformers.records.plan import Plan
from reports.judge.comparisons import Comparison

__all__ = ["ComparisonNames", "name_comparisons"]

_AGAINST = " against "
_BASELINE = "the baseline"


class ComparisonNames(NamedTuple):
    """The names of comparisons by their whole names, without the part that all of them share.

    reference  the arm or level that all of them are against; empty where that differs
    factor     the factor of which all of them compare a level with it; empty where there is none
    short      their names without the reference; in a sentence, where numbers have their factor
    levels     their names without the reference and without the factor, for a column or an axis that these head
    """

    reference: str
    factor: str
    short: Mapping[str, str]
    levels: Mapping[str, str]

    def heading(self, otherwise: str) -> str:
        """Returns the head of a column of ``levels``; ``otherwise`` where nothing is shared."""
        if not self.reference:
            return otherwise
        return f"{self.factor} against {self.reference}" if self.factor else f"Against {self.reference}"


def name_comparisons(plan: Plan, comparisons: Sequence[Comparison]) -> ComparisonNames:
    """Returns the names of comparisons of a plan that are shown together."""
    whole = [one.name for one in comparisons]
    parts = [name.rpartition(_AGAINST) for name in whole]
    references = {reference for _, against, reference in parts if against}
    if len(whole) < 2 or len(references) != 1 or not all(arm for arm, _, _ in parts):
        same = dict(zip(whole, whole, strict=True))
        return ComparisonNames("", "", same, same)
    (reference,), arms = references, [arm for arm, _, _ in parts]
    factor, levels = _factor_and_levels(plan, reference, arms)
    short = levels if factor and are_words(levels) else arms
    return ComparisonNames(
        reference, factor, dict(zip(whole, short, strict=True)), dict(zip(whole, levels, strict=True))
    )


def _factor_and_levels(plan: Plan, reference: str, arms: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the factor of which all arms are levels, and those; no factor and the arms where there is none."""
    split = [re.split(": |=", arm, maxsplit=1) for arm in arms]
    if len({parts[0] for parts in split}) == 1 and all(len(parts) == 2 for parts in split):
        return split[0][0], [parts[1] for parts in split]
    is_from_baseline = plan.contrasts is None and reference == _BASELINE
    return (plan.labels.factor or "" if is_from_baseline else ""), list(arms)
