"""The looks of a study: which seeds its arms have at the present one, and which at the next.

The looks that were taken are stored in the study's ``plan.json``, so that a study resumes at its last look. They are
looks at runs: an arm whose configs, data or code have changed since begins at the first look, and if the baseline has
changed, all arms do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ablations.plan import PlannedStudy, changed_arms, existing_plan, reported_plan
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import LookPlan, Plan

if TYPE_CHECKING:
    from reports.judge.comparisons import Comparison

__all__ = ["arms_begun_anew", "at_present_look", "next_look", "with_look_taken"]


def at_present_look(planned: PlannedStudy, runs: Path, seeds: int | None) -> PlannedStudy:
    """Returns a planned study with the seeds and looks of the present look: the one that its folder has come to.

    planned: with all seeds that any look may take. seeds: the number that was requested by hand, which is a separate
    look where it exceeds the seeds of an earlier report. Raises ConfigError where the study states other looks than
    when the first one was taken, or another metric, margin, arms, contrasts or effects.
    """
    history = _history(planned, runs)
    earlier = history.looks if history else None
    stated = planned.plan.looks
    counts = {arm.name: len(arm.runs) for arm in planned.plan.arms}
    if stated is None:
        if history is None or (history.plan.looks is None and planned.plan.seeds <= history.looks.taken[-1]):
            return planned
        stated = LookPlan(history.looks.planned if len(history.looks.planned) == 1 else (planned.plan.seeds,))
    if earlier is not None and earlier.planned != stated.planned:
        raise ConfigError(
            f"a look was taken when the looks {_text(earlier.planned)} were planned, and now they are "
            f"{_text(stated.planned)}; state those again, or remove that folder to begin anew",
            str(runs / "studies" / planned.folder),
        )
    if history is not None and (changes := _changes(history.plan, planned.plan)):
        raise ConfigError(
            f"a look was taken, and then {' and '.join(changes)} changed; undo that, or rename the study to begin anew",
            str(runs / "studies" / planned.folder),
        )
    if seeds is None and planned.plan.looks is not None:
        past = {arm.name: len(arm.runs) for arm in history.plan.arms} if history else {}
        past |= dict.fromkeys(history.anew if history else (), stated.planned[0])
        counts = {arm: min(past.get(arm, stated.planned[0]), most) for arm, most in counts.items()}
    return planned.with_seeds(counts, replace(stated, taken=earlier.taken if earlier else ()))


def arms_begun_anew(planned: PlannedStudy, runs: Path) -> list[str]:
    """Returns the arms of a plan of looks that begin at the first one though others were taken, because their configs,
    data or code have changed since."""
    previous = existing_plan(runs, planned.folder)
    if planned.plan.looks is None or previous is None or previous.looks is None or not previous.looks.taken:
        return []
    history = _history(planned, runs)
    return list(history.anew) if history else [arm.name for arm in planned.plan.arms]


class History(NamedTuple):
    """An earlier plan of a study of the same runs, the looks that were taken, and the arms that begin anew."""

    plan: Plan
    looks: LookPlan
    anew: tuple[str, ...]


def _history(planned: PlannedStudy, runs: Path) -> History | None:
    """Returns the earlier plan and its looks; None where no look was taken, or only at other runs. A report without a
    plan of looks counts as a look; with one seed it has no verdict, and does not count."""
    previous = existing_plan(runs, planned.folder)
    if previous is None or previous.looks is None:
        previous = reported_plan(runs, planned.folder)
    looks = previous.looks if previous else None
    if previous and looks is None and previous.seeds > 1:
        looks = LookPlan((previous.seeds,), (previous.seeds,))
    if previous is None or looks is None or not looks.taken:
        return None
    anew = changed_arms(previous, planned.plan)
    return None if planned.plan.baseline in anew else History(previous, looks, tuple(anew))


def _changes(previous: Plan, plan: Plan) -> list[str]:
    """Returns, in words, the parts that the verdicts of a study are about and that differ between two of its plans."""
    stated = [
        {
            "its metric": (one.metric.name, one.metric.goal, one.metric.compare),
            "its margin": one.metric.margin and one.metric.margin.size,
            "its baseline": one.baseline,
            "its arms": {arm.name: arm.levels for arm in one.arms},
            "its first seed": one.arms[0].runs[0].seed,
            "its contrasts": {contrast.name: contrast for contrast in one.contrasts or ()},
            "its effects": one.effects,
        }
        for one in (previous, plan)
    ]
    return [name for name, value in stated[0].items() if value != stated[1][name]]


def with_look_taken(plan: Plan) -> Plan:
    """Returns a plan whose runs have all ended with its look among those taken."""
    if plan.looks is None:
        return plan
    return replace(plan, looks=replace(plan.looks, taken=tuple(sorted({*plan.looks.taken, plan.seeds}))))


def next_look(
    whole: PlannedStudy, plan: Plan, comparisons: Iterable[Comparison], *, last: int | None = None
) -> PlannedStudy | None:
    """Returns the study at its next planned look: with more seeds for the arms of unresolved comparisons. None where
    all comparisons are decided or no look is left.

    An arm that failed at a look, and was repaired, gets the seeds of the looks that the others had one after another.
    whole: the study with the seeds of all looks. plan: that of the present look. comparisons: its judged comparisons.
    last: the number of seeds of the last look that is taken.
    """
    assert plan.looks is not None
    counts = {arm.name: len(arm.runs) for arm in plan.arms}
    looks = [seeds for seeds in plan.looks.planned if last is None or seeds <= last]
    later: dict[int, set[str]] = {}
    for comparison in comparisons:
        fewest = min((counts[arm] for arm in comparison.weights), default=0)
        following = next((seeds for seeds in looks if seeds > fewest), None)
        if comparison.verdict == "unresolved" and following is not None:
            later.setdefault(following, set()).update(comparison.weights)
    if not later:
        return None
    seeds = min(later)
    return whole.with_seeds(
        {arm: max(count, seeds) if arm in later[seeds] else count for arm, count in counts.items()}, plan.looks
    )


def _text(looks: Iterable[int]) -> str:
    return ", ".join(map(str, looks))
