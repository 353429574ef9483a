"""The facts on the runs that a reader needs with the answer, in a sentence each, for the first screen of every
report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reports.judge.fairness import before_these_seeds, environments, measured_splits
from reports.judge.findings import Findings
from reports.read.answers import STATED_LATER
from reports.read.study import Run, Study
from reports.show.tables import fixed

__all__ = ["about_runs", "absolute_values"]

SELECTED_TOO = "validation"
"""The split on which recipes, rates and numbers of updates are chosen."""
_MOST = 6
"""The most arms whose values stand on the first screen; a table has all."""


def absolute_values(findings: Findings) -> str:
    """Returns the mean and the standard deviation over seeds of the arms whose comparisons answer the question, the
    baseline first; nothing without a finished run."""
    study, labels = findings.study, findings.study.plan.labels
    compared = dict.fromkeys(arm for one in findings.primary for arm in one.weights)
    arms = [arm for arm in study.arm_names if arm in compared and study.finished(arm)]
    arms.sort(key=lambda arm: arm != study.plan.baseline)
    if not arms:
        return ""
    values = [f"{labels.marked(arm)} {_value(findings, study.finished(arm))}" for arm in arms[:_MOST]]
    more = f"; {len(arms) - _MOST} more in the table" if len(arms) > _MOST else ""
    return f"Means in {findings.metric.title}: {'; '.join(values)}{more}."


def _value(findings: Findings, runs: Sequence[Run]) -> str:
    values = [run.value for run in runs]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{fixed(mean, findings.decimals)} (1 seed)"
    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{fixed(mean, findings.decimals)} ± {fixed(spread, findings.decimals)} ({len(values)} seeds)"


def about_runs(findings: Findings) -> Iterator[str]:
    """Yields the split that was measured, the runs without a value, the plan and the seeds before it, whether the
    answer was stated after the results, which runs other studies have too, and the hardware."""
    study = findings.study
    yield from _split(study)
    yield _without_value(study)
    yield from _rates(study)
    yield from _plan(study)
    if STATED_LATER in study.notes:
        yield STATED_LATER
    if study.shared is not None:
        yield f"{_shared(study.shared.runs, len(study.plan.by_key()))} in {_listed(study.shared.studies)}."
    yield from _hardware(study)


def _split(study: Study) -> Iterator[str]:
    splits = measured_splits(study)
    if splits:
        chosen = ", where recipes and numbers of updates may have been chosen too" if SELECTED_TOO in splits else ""
        yield f"Measured on the {_listed(splits)} split{chosen}."


def _without_value(study: Study) -> str:
    """Returns how many runs have no value, and why."""
    without = [run for run in study.runs if run.missing is not None]
    if not without:
        return f"All {len(study.runs)} runs have a value."
    counts = Counter(_reason(run) for run in without)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    return f"{len(without)} of {len(study.runs)} runs {'has' if len(without) == 1 else 'have'} no value: {reasons}."


def _reason(run: Run) -> str:
    return "diverged" if run.diverged else (run.missing or "").partition(":")[0]


def _plan(study: Study) -> Iterator[str]:
    looks = study.plan.looks
    if looks is not None:
        planned, taken = (_listed([*map(str, numbers)]) for numbers in (looks.planned, looks.taken))
        yield f"Looks were planned at {planned} seeds and taken at {taken or 'none'}."
    if before := before_these_seeds(study):
        yield f"Before these seeds: {before}."
    if omitted := study.plan.omissions:
        yield f"{len(omitted)} arm{'s are' if len(omitted) > 1 else ' is'} omitted at this scale."


def _rates(study: Study) -> Iterator[str]:
    trained = [run.record.config.get("training") or {} for run in study.runs if run.record is not None]
    has_rate = any(training.get("steps") and training.get("optimizer") for training in trained)
    if study.rates is None and (has_rate or study.plan.rates is not None):
        yield "Not measured yet: whether verdicts stand at half and twice the learning rate."


def _shared(shared: int, total: int) -> str:
    return f"{shared} of its {total} runs also {'stands' if shared == 1 else 'stand'}"


def _hardware(study: Study) -> Iterator[str]:
    hardware = environments(study, "hardware")
    if not hardware:
        return
    trained = [run.record.config.get("training") or {} for run in study.runs if run.record and run.missing is None]
    devices = sorted({str(training["device"]) for training in trained if training.get("device")})
    threads = environments(study, "threads")
    parts = ["; ".join(hardware), *([f"device {_listed(devices)}"] if devices else [])]
    parts += [f"{_listed(threads)} thread{'' if threads == ['1'] else 's'} a run"] if threads else []
    yield f"Hardware: {', '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    *first, last = names or ("",)
    return f"{', '.join(first)} and {last}" if first else last
