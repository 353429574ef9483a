"""Commands whose runs do not repeat their values: the statements of a comparison that this affects.

The value of an arm at a seed is then a part that the seed decides and a part that every run draws anew. The difference
of two arms at a seed holds both draws, and no two differences share one. So the variance between the differences of
seeds, from which intervals are computed, holds the whole of it: nothing is added, or it would count twice. Only a
shared part of a seed cancels in a difference; pairing gains nothing from the part that is drawn anew, and claims none.

The value ``repeats_within`` of a config is no variance either. It bounds the difference between two runs, most often of
a short run that its gate has seen once, so the width of an interval that is widened by it would depend on how generous
the bound is.

Two statements do rest on single runs. Arms that are identical in every seed compute the same only if a run does repeat
its value; equal values of others may be chance, as those of rounded scores are. And single seeds show nothing if none
differs by more than a run differs from itself: only the mean of all seeds can then show a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lit_transformers.records.record import REPEATS_WITHIN
from reports.read.study import Study

__all__ = ["repeatability_notes", "repeats_within", "why_not_identical"]


def repeats_within(study: Study, arms: Iterable[str]) -> float:
    """Returns how far the values of two runs of one seed may differ, by the records of these arms; 0 where all repeat
    their values, and for times and memory, of which that is not stated."""
    if study.plan.metric.name.startswith("measured/"):
        return 0.0
    stated = [run.record.protocol.get(REPEATS_WITHIN) for arm in arms for run in study.finished(arm) if run.record]
    return max((float(one) for one in stated if isinstance(one, int | float)), default=0.0)


def why_not_identical(study: Study, arms: Sequence[str]) -> str | None:
    """Returns why equal values in every seed do not show that arms are identical, or None where they do."""
    within = repeats_within(study, arms)
    if not within:
        return None
    return f"equal in every seed, which may be chance: a run of one seed repeats its value within {within:g} only"


def repeatability_notes(study: Study, contrasts: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns notes for readers on the intervals of a study whose runs do not repeat their values; nothing where they
    do. contrasts: the two arms of each, by its name."""
    within = repeats_within(study, study.arm_names)
    if not within:
        return []
    close = [name for name, arms in contrasts.items() if _are_close(study, arms)]
    note = (
        f"A run of one seed repeats its {study.plan.metric.name} within {within:g} only. The differences between seeds "
        "hold this, and so do their intervals."
    )
    if not close:
        return [note]
    return [f"{note} In no seed is the difference larger in {', '.join(close)}: only the mean of all seeds can decide."]


def _are_close(study: Study, arms: Sequence[str]) -> bool:
    """Whether two arms differ in each of their seeds by no more than a run differs from itself."""
    one, other = ({run.seed: run.value for run in study.finished(arm)} for arm in arms)
    within = repeats_within(study, arms)
    return bool(one.keys() & other) and all(abs(one[seed] - other[seed]) <= within for seed in one.keys() & other)
