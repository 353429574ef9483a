"""Which runs of a store are compared: those selected by their configs, one for each arm and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lit_transformers.config import nearest
from lit_transformers.records.measure import Goal
from reports.read.study import ReportError
from reports.read.table_rows import text
from reports.read.trackers.factors import config_roles, level, listed
from reports.read.trackers.readers import HYDRA, reader_of
from reports.read.trackers.tracked_run import FINISHED, RunsAddress, TrackedRun

__all__ = ["Pick", "RunSelection", "SelectedRun", "TrackerQuestion", "select_runs"]

Pick = Literal["last", "best"]


@dataclass(frozen=True)
class TrackerQuestion:
    """Which runs of a store are judged, and by which value.

    tracker: the kind of reader, recognised by default. where: the levels of config keys that runs must have. pick: the
    value at the last step of a run, or the best over its steps. values: the file with the values of each run, for
    trackers that keep none. curves: whether every step counts, as it does for the time to a target.
    """

    tracker: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    pick: Pick = "last"
    values: str | None = None
    curves: bool = False


class SelectedRun(NamedTuple):
    """A run, its seed, and its levels of the keys that tell arms apart."""

    run: TrackedRun
    levels: tuple[str, ...]
    seed: str


class RunSelection(NamedTuple):
    """The runs of a store, one for each arm and seed. arm: the keys that distinguish arms. goal: the better direction
    of the metric where the tracker knows it. notes: a sentence on everything that was guessed or is not judged."""

    runs: list[SelectedRun]
    arm: tuple[str, ...]
    goal: Goal | None
    notes: list[str]


def select_runs(
    source: str, metric: str, question: TrackerQuestion, arm: Sequence[str] = (), seed: str | None = None
) -> RunSelection:
    """Returns the runs of a store, read with the values of a metric. ``arm`` and ``seed``: config keys, by default
    those that differ between runs.

    Raises ReportError, in one line, where there are no runs, or none logged the metric, or runs cannot be
    distinguished.
    """
    address = RunsAddress(source, question.values, question.curves or question.pick == "best")
    reader, others = reader_of(address, question.tracker)
    if question.values is not None and reader is not HYDRA:
        raise ReportError(
            f"--values {question.values}: is for Hydra's multirun; {reader.title} keeps the values itself"
        )
    everything = list(reader.runs(address, metric))
    if not everything:
        raise ReportError(f"{source}: holds no run of {reader.title}")
    runs = _where(everything, question.where)
    _require_metric(source, runs, metric, question)
    labels = [{name: label for name, label in run.labels.items() if name not in run.config} for run in runs]
    roles = config_roles([run.config for run in runs], labels, arm, seed)
    levels = [tuple(_level(run, key) for key in roles.arm) or ("all runs",) for run in runs]
    seeds = [_level(run, roles.seed) for run in runs] if roles.seed else _numbered(levels)
    selected = [SelectedRun(*one) for one in zip(runs, levels, seeds, strict=True)]
    kept, again = _one_each(selected, roles.arm)
    unseeded = "No config key holds seeds: the runs of an arm are numbered in their order. Name it by --seed KEY."
    notes = [
        _count(reader.title, runs, len(everything)),
        *([f"there are files of other trackers, too: read them by --from {' or '.join(others)}"] if others else []),
        *roles.notes,
        *([] if roles.seed else [unseeded]),
        *([f"done again, and counted by the later run: {listed(again)}"] if again else []),
        *_ended_early(runs),
    ]
    return RunSelection(kept, roles.arm or ("arm",), next((run.goal for run in runs if run.goal), None), notes)


def _where(runs: Sequence[TrackedRun], where: Mapping[str, str]) -> list[TrackedRun]:
    kept = list(runs)
    for key, value in where.items():
        known = dict.fromkeys(name for run in kept for name in (*run.config, *run.labels))
        if key not in known:
            raise ReportError(f"--where {key}={value}: no run has the config key; {nearest(key, list(known))}")
        levels = dict.fromkeys(_level(run, key) for run in kept)
        kept = [run for run in kept if _level(run, key) == value]
        if not kept:
            raise ReportError(f"--where {key}={value}: no run has it; there are {listed(list(levels))}")
    return kept


def _require_metric(source: str, runs: Sequence[TrackedRun], metric: str, question: TrackerQuestion) -> None:
    logged = dict.fromkeys(name for run in runs for name in sorted(run.metrics))
    if metric in logged:
        return
    if not logged:
        way = "" if question.values else "; name a file in their folders that holds them: --values FILE"
        raise ReportError(f"{source}: none of {len(runs)} runs holds values{way}")
    near = nearest(metric, list(logged))
    others = f" There are: {listed(list(logged), 12)}" if near.endswith("?") else ""
    raise ReportError(f"{source}: no run logged {metric!r}; {near}{others}")


def _level(run: TrackedRun, key: str) -> str:
    return level(run.config if key in run.config else run.labels, key)


def _numbered(levels: Sequence[tuple[str, ...]]) -> list[str]:
    counts: Counter[tuple[str, ...]] = Counter()
    numbers = []
    for one in levels:
        numbers.append(str(counts[one]))
        counts[one] += 1
    return numbers


def _one_each(runs: Sequence[SelectedRun], arm: Sequence[str]) -> tuple[list[SelectedRun], list[str]]:
    """Returns the runs to judge, one for each arm and seed, and the names of the others.

    A run that was done again is represented by the one that finished. Raises ReportError where several finished.
    """
    same: dict[tuple[tuple[str, ...], str], list[SelectedRun]] = {}
    for one in runs:
        same.setdefault((one.levels, one.seed), []).append(one)
    kept, again = [], []
    for alike in same.values():
        done = [one for one in alike if one.run.has_finished]
        if len(done) > 1:
            raise ReportError(_alike(done[0], done[1], arm))
        kept.append(done[0] if done else alike[-1])
        again += [one.run.name for one in alike if one is not kept[-1]]
    return kept, again


def _alike(one: SelectedRun, other: SelectedRun, arm: Sequence[str]) -> str:
    config, of_other = one.run.config, other.run.config
    differing = [key for key in config if key not in arm and text(config[key]) != text(of_other.get(key))]
    way = (
        f"they differ in {listed(differing, 4)}: add --arm {differing[0]}, or select by --where {differing[0]}=VALUE"
        if differing
        else "select one by --where, or move the other away"
    )
    both = f"are both of arm {' '.join(one.levels)} and seed {one.seed}"
    return f"the runs {one.run.name} and {other.run.name} {both}; {way}"


def _count(title: str, runs: Sequence[TrackedRun], of: int) -> str:
    """Returns how many runs were read, and how they ended."""
    statuses = Counter(
        "diverged"
        if run.has_diverged
        else "without a value"
        if run.has_finished and not run.points
        else run.status or FINISHED
        for run in runs
    )
    parts = [f"{count} {status}" for status, count in statuses.items()]
    selected = f" of {of}" if len(runs) != of else ""
    return f"read {len(runs)}{selected} run{'s' * (of != 1)} of {title}: {', '.join(parts)}"


def _ended_early(runs: Sequence[TrackedRun]) -> list[str]:
    """Returns a note where the tracker keeps no status, and runs ended before others did."""
    judged = [run for run in runs if run.status is None and run.points and not run.has_diverged]
    ends = {run.name: max(step for step, _ in run.points) for run in judged}
    last = max(ends.values(), default=0.0)
    early = [name for name, end in ends.items() if end < last]
    if not early:
        return []
    return [
        f"The tracker keeps no status. {len(early)} of {len(ends)} runs end before step {last:g} and count as "
        f"finished: {listed(early)}. Do them again if they were stopped."
    ]
