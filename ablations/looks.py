"""The looks of a study: which seeds its arms have at the present one, and which at the next.

The looks that were taken stand in the study's ``plan.json``, so that a study goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.plan import PlannedStudy, existing_plan
from lit_transformers.config import ConfigError
from lit_transformers.records.plan import LookPlan, Plan, plan_path

if TYPE_CHECKING:
    from reports.judge.comparisons import Comparison

__all__ = ["at_present_look", "next_look", "with_look_taken"]


def at_present_look(planned: PlannedStudy, runs: Path, seeds: int | None) -> PlannedStudy:
    """Returns a planned study with the seeds and looks of the present look: the one that its folder has come to.

    planned: with all seeds that any look may take. seeds: those that were asked for by hand, which are a look of their
    own where they are more than those of an earlier report. Raises ConfigError where the study states other looks than
    when the first one was taken, or another metric, margin, arms, contrasts or effects.
    """
    previous = existing_plan(runs, planned.folder)
    earlier = _looks_so_far(previous, runs) if previous else None
    stated = planned.plan.looks
    counts = {arm.name: len(arm.runs) for arm in planned.plan.arms}
    if stated is None:
        if previous is None or earlier is None or (previous.looks is None and planned.plan.seeds <= earlier.taken[-1]):
            return planned
        stated = LookPlan(earlier.planned if len(earlier.planned) == 1 else (planned.plan.seeds,))
    if earlier is not None and earlier.planned != stated.planned:
        raise ConfigError(
            f"a look was taken when the looks {_text(earlier.planned)} were planned, and now they are "
            f"{_text(stated.planned)}; state those again, or remove that folder to begin anew",
            str(runs / "studies" / planned.folder),
        )
    if earlier is not None and previous and (changes := _changes(previous, planned.plan)):
        raise ConfigError(
            f"a look was taken, and then {' and '.join(changes)} changed; undo that, or rename the study to begin anew",
            str(runs / "studies" / planned.folder),
        )
    if seeds is None and planned.plan.looks is not None:
        past = {arm.name: len(arm.runs) for arm in previous.arms} if previous and earlier else {}
        counts = {arm: min(past.get(arm, stated.planned[0]), most) for arm, most in counts.items()}
    return planned.with_seeds(counts, LookPlan(stated.planned, earlier.taken if earlier else ()))


def _looks_so_far(previous: Plan, runs: Path) -> LookPlan | None:
    """Returns the looks of an earlier plan, or None where none was taken. A report without a plan of looks is one; of
    one seed it has no verdict, and is none."""
    if previous.looks is not None:
        return previous.looks if previous.looks.taken else None
    has_report = plan_path(runs, previous.folder).with_name("report").is_dir()
    return LookPlan((previous.seeds,), (previous.seeds,)) if has_report and previous.seeds > 1 else None


def _changes(previous: Plan, plan: Plan) -> list[str]:
    """Returns what differs between two plans of a study of all that its verdicts are about, in words."""
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
    """Returns a plan whose runs have all ended with its look among those taken, and the planned ones before it."""
    if plan.looks is None:
        return plan
    passed = {seeds for seeds in plan.looks.planned if seeds <= plan.seeds}
    taken = tuple(sorted(passed | {*plan.looks.taken, plan.seeds}))
    return replace(plan, looks=replace(plan.looks, taken=taken))


def next_look(whole: PlannedStudy, plan: Plan, comparisons: Iterable[Comparison]) -> PlannedStudy | None:
    """Returns the study at its next planned look: with more seeds for the arms of unresolved comparisons. None where
    all comparisons are decided or no look is left.

    whole: the study with the seeds of all looks. plan: that of the present look. comparisons: its judged comparisons.
    """
    assert plan.looks is not None
    later = [seeds for seeds in plan.looks.planned if seeds > plan.seeds]
    arms = {arm for comparison in comparisons if comparison.verdict == "unresolved" for arm in comparison.weights}
    if not later or not arms:
        return None
    counts = {arm.name: later[0] if arm.name in arms else len(arm.runs) for arm in plan.arms}
    return whole.with_seeds(counts, plan.looks)


def _text(looks: Iterable[int]) -> str:
    return ", ".join(map(str, looks))
