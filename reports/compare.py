"""Compares two runs or two studies: configs path by path, metrics with intervals, and costs as ratios.

Two studies are joined into one study that holds each common arm twice, so that the comparisons of a report apply to
them. Two runs have one seed each, so their intervals are over documents alone and do not cover other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lit_transformers.config import nearest, plain_leaves
from lit_transformers.records.files import PLAN, PUBLISHED, RECORD, RESULTS
from lit_transformers.records.plan import Contrast, Metric, Plan, PlannedArm, PlannedRun
from lit_transformers.records.study_folder import require_name
from reports.judge.comparisons import Comparison
from reports.judge.comparisons import compare as compare_arms
from reports.judge.costs import CostRatio, cost_ratio
from reports.judge.evidence import gather
from reports.judge.fairness import mean_cost
from reports.judge.statistics import LEVEL, ConfidenceInterval
from reports.publish import published
from reports.read.results import read_results
from reports.read.study import ReportError, Run, RunData, Study, assemble, load_study, read_run
from reports.show.sections import filled_costs
from reports.show.tables import Cell, Column, Table, escape_markdown, plain, to_markdown

_ALL = "all arms"
SIDES = {"one": -1.0, "other": 1.0}
"""The ends of the names of the joined study's arms, with their signs in the second side minus the first."""


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison: a study, or a run as a study with a single arm."""

    name: str
    kind: Literal["run", "study"]
    study: Study


@dataclass(frozen=True)
class ComparedArm:
    """An arm that both sides have under the same name, with its runs on each side."""

    arm: str
    first: tuple[Run, ...]
    second: tuple[Run, ...]


def find_side(name: str, runs: Path, folder: Path = PUBLISHED) -> ComparedSide:
    """Finds a run or a study by its folder, by a run's key, or by the name of a study that was run here or published.

    Raises ReportError, which names the nearest known study, where there is none.
    """
    path = Path(name)
    if path.is_dir():
        return _from_folder(path)
    require_name(name, "run or study")
    if (runs / name / RECORD).is_file():
        return _run_side(runs / name)
    if (runs / "studies" / name / PLAN).is_file():
        return ComparedSide(name, "study", load_study(runs, name))
    if (folder / name / RESULTS).is_file():
        return ComparedSide(name, "study", read_results(folder / name / RESULTS))
    names = {plan.parent.name for plan in runs.glob("studies/*/plan.json")} | {
        entry.name for entry in published(folder)
    }
    raise ReportError(f"{name}: no folder, no run of {runs} and no study; {nearest(name, names)}")


def _from_folder(path: Path) -> ComparedSide:
    if (path / RECORD).is_file():
        return _run_side(path)
    if (path / RESULTS).is_file():
        return ComparedSide(path.name, "study", read_results(path / RESULTS))
    if (path / PLAN).is_file():
        return ComparedSide(path.name, "study", load_study(path.resolve().parent.parent, path.resolve().name))
    raise ReportError(
        f"{path}: holds neither record.json nor {RESULTS} nor plan.json; give a run's or a study's folder"
    )


def _run_side(directory: Path) -> ComparedSide:
    notes: list[str] = []
    run_data = read_run(directory, notes)
    if isinstance(run_data.record, str):
        raise ReportError(f"{directory}: the run cannot be compared: {'; '.join(notes) or run_data.record}")
    name, metrics = directory.resolve().name, list(run_data.record.metrics)
    arm = PlannedArm(name="the run", runs=(PlannedRun(seed=run_data.record.seed, key=name),))
    metric = Metric(name=metrics[0] if metrics else "no metric")
    plan = Plan(version=1, study=name, question=name, metric=metric, baseline=arm.name, arms=(arm,))
    return ComparedSide(name, "run", assemble(plan, {name: run_data}, notes))


def compare(one: ComparedSide, other: ComparedSide) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """Returns the tables of a comparison that have rows, and notes.

    Raises ReportError where one side is a run and the other a study, where no arm is common to both, or where no common
    arm has run on both sides.
    """
    if one.kind != other.kind:
        raise ReportError(f"{one.name} is a {one.kind} and {other.name} a {other.kind}; compare two of the same kind")
    pairs = list(_pairs(one.study, other.study))
    if not pairs:
        arms = ", ".join(arm.name for arm in one.study.plan.arms)
        raise ReportError(f"{one.name} and {other.name} have no arm in common; the arms of {one.name}: {arms}")
    notes = [f"{side.name} was withdrawn: {side.study.withdrawn}" for side in (one, other) if side.study.withdrawn]
    notes += [*one.study.notes, *other.study.notes]
    of_effects = [effects(one, other, pairs, notes)] if one.kind == "study" else []
    candidates = (configs(one, other, pairs), metrics(one, other, pairs, notes), *of_effects, costs(one, other, pairs))
    tables = [table if one.kind == "study" else _without_arms(table) for table in candidates if table.rows]
    if not tables:
        raise ReportError(_why_nothing(one, other))
    return tuple(tables), tuple(dict.fromkeys(notes))


def _why_nothing(one: ComparedSide, other: ComparedSide) -> str:
    """Returns why nothing can be compared: a side has no finished run, or no common arm has finished on both."""
    unfinished = [side for side in (one, other) if side.study.missing() == len(side.study.runs)]
    if not unfinished:
        return f"{one.name} and {other.name} have no arm of which a run has finished on both sides; finish one of each"
    reasons = [f"{side.name}: no run has finished ({', '.join(_reasons(side.study))})" for side in unfinished]
    commands = [command for side in unfinished if (command := side.study.plan.commands.get("run"))]
    return "; ".join([*dict.fromkeys(reasons), f"run it by: {commands[0]}" if commands else "run it first"])


def _reasons(study: Study) -> list[str]:
    return list(dict.fromkeys(run.missing for run in study.runs if run.missing)) or ["no runs are planned"]


def _without_arms(table: Table) -> Table:
    """Returns the table without its column of arms, for two runs are one arm without a name."""
    indices = [index for index, column in enumerate(table.columns) if column.title != "Arm"]
    rows = tuple(tuple(row[index] for index in indices) for row in table.rows)
    return replace(table, columns=tuple(table.columns[index] for index in indices), rows=rows)


def _pairs(one: Study, other: Study) -> Iterator[ComparedArm]:
    for arm in one.plan.arms:
        if other_runs := other.of(arm.name):
            yield ComparedArm(arm.name, one.of(arm.name), other_runs)


def configs(one: ComparedSide, other: ComparedSide, pairs: list[ComparedArm]) -> Table:
    """Returns a table of the config values that differ, path by path; seeds are included for two runs only."""
    columns = (Column("Arm"), Column("Path"), Column(one.name), Column(other.name))
    differing = {pair.arm: _differing(pair, seeds=one.kind == "run") for pair in pairs}
    everywhere = [line for line in differing[pairs[0].arm] if all(line in lines for lines in differing.values())]
    rows = [(Cell(_ALL), *map(Cell, line)) for line in everywhere] if len(pairs) > 1 else []
    for arm, lines in differing.items():
        rows += [(Cell(arm), *map(Cell, line)) for line in lines if len(pairs) == 1 or line not in everywhere]
    return Table("configs", "Differences between the configs", columns, tuple(rows))


def _differing(pair: ComparedArm, seeds: bool) -> list[tuple[str, str, str]]:
    """Returns each differing path with both values, from the first run with a record on each side."""
    one_record, other_record = (
        next((run.record for run in runs if run.record), None) for runs in (pair.first, pair.second)
    )
    if one_record is None or other_record is None:
        return []
    mine, theirs = _text_by_path(one_record.config), _text_by_path(other_record.config)
    rows = [(path, mine.get(path, "-"), theirs.get(path, "-")) for path in dict.fromkeys([*mine, *theirs])]
    return [row for row in rows if row[1] != row[2] and (seeds or row[0] not in ("seed", "data.seed"))]


def _text_by_path(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns every value of a config as text, by its dotted path."""
    return {path: "null" if value is None else str(value) for path, value in plain_leaves(config)}


def metrics(one: ComparedSide, other: ComparedSide, pairs: list[ComparedArm], notes: list[str]) -> Table:
    """Returns a table of every metric that both sides report, with the second minus the first and its interval."""
    columns = (
        Column("Metric"),
        Column("Arm"),
        *_difference_columns(one, other, "Difference"),
        Column("Over"),
    )
    rows = []
    for name in _common_metrics(pairs):
        joint = join(one.study, other.study, pairs, name)
        comparisons = compare_arms(joint, notes)
        for pair, comparison in zip(pairs, comparisons, strict=True):
            means = [joint.mean_of(arm) for arm in reversed(list(comparison.weights))]
            interval, over = _certainty(joint, comparison)
            numbers = (*map(Cell, means), _effect_cell(comparison), _interval_cell(interval))
            rows.append((Cell(name), Cell(pair.arm), *numbers, Cell(over)))
    difference_note = f"Differences are {other.name} minus {one.name}, over the seeds that both have."
    interval_note = "An interval over documents alone says nothing of other seeds."
    return Table("metrics", "Metrics", columns, tuple(rows), (difference_note, interval_note))


def _difference_columns(one: ComparedSide, other: ComparedSide, title: str) -> tuple[Column, ...]:
    """Returns the columns of a number on both sides, of the second minus the first, and of its interval."""
    numbers = (Column(name, "number", decimals=4) for name in (one.name, other.name, title))
    return *numbers, Column("95 % interval", "interval", decimals=4)


def _common_metrics(pairs: list[ComparedArm]) -> list[str]:
    mine = [name for pair in pairs for run in pair.first if run.record for name in run.record.metrics]
    theirs = {name for pair in pairs for run in pair.second if run.record for name in run.record.metrics}
    return [name for name in dict.fromkeys(mine) if name in theirs]


def effects(one: ComparedSide, other: ComparedSide, pairs: list[ComparedArm], notes: list[str]) -> Table:
    """Returns a table of every comparison that both studies make by the same metric, with the second effect minus the
    first and its interval: whether a gain grows or shrinks, for example with training. No rows for other metrics."""
    columns = (
        Column("Comparison"),
        *_difference_columns(one, other, "Change"),
        Column("Verdict"),
    )
    first, second = one.study.plan.metric, other.study.plan.metric
    if (first.name, first.compare) != (second.name, second.compare):
        return Table("effects", "Effects", columns, ())
    joint = join(one.study, other.study, pairs, first.name)
    joint = replace(joint, plan=replace(joint.plan, metric=replace(first, margin=None)))
    number = {pair.arm: number for number, pair in enumerate(pairs)}
    theirs = {comparison.name: comparison for comparison in compare_arms(other.study, [])}
    both = [
        (comparison, theirs[comparison.name])
        for comparison in compare_arms(one.study, [])
        if comparison.weights and comparison.weights.keys() <= number.keys()
        if comparison.name in theirs and theirs[comparison.name].weights == comparison.weights
    ]
    planned = []
    for comparison, _ in both:
        weights = comparison.weights.items()
        signed = {f"{number[arm]} {side}": sign * weight for side, sign in SIDES.items() for arm, weight in weights}
        planned.append(Comparison(comparison.name, "interaction", signed))
    changes = compare_arms(joint, notes, unmatched=True, planned=planned)
    rows = tuple(
        (
            Cell(change.name),
            *map(_effect_cell, (*of_studies, change)),
            _interval_cell(change.estimate.interval if change.estimate else None),
            Cell(change.verdict or f"none ({change.reason})"),
        )
        for of_studies, change in zip(both, changes, strict=True)
        if all(comparison.estimate for comparison in of_studies)
    )
    note = f"A change is the effect in {other.name} minus that in {one.name}, over the seeds that both have."
    ratios = ["Effects are logarithms of ratios."] if first.compare == "ratio" else []
    return Table("effects", "Effects", columns, rows, (note, *ratios))


def _effect_cell(comparison: Comparison) -> Cell:
    return Cell(comparison.estimate.difference) if comparison.estimate else Cell()


def _interval_cell(interval: ConfidenceInterval | None) -> Cell:
    return Cell(low=interval.low, high=interval.high) if interval else Cell()


def join(one: Study, other: Study, pairs: list[ComparedArm], metric: str) -> Study:
    """Joins both sides into one study with each common arm twice and a contrast of the second minus the first."""
    arms, contrasts = [], []
    run_data: dict[str, RunData] = {}
    for number, pair in enumerate(pairs):
        names = tuple(f"{number} {side}" for side in SIDES)
        for name, runs in zip(names, (pair.first, pair.second), strict=True):
            run_data |= {f"{name} {index}": _run_data(run) for index, run in enumerate(runs)}
            # Two single runs form one pair, also if their seeds differ.
            seeds = [run.seed for run in runs] if len(runs) > 1 else [0]
            planned = [PlannedRun(seed=seed, key=f"{name} {index}") for index, seed in enumerate(seeds)]
            arms.append(PlannedArm(name=name, runs=tuple(planned)))
        contrasts.append(Contrast(name=pair.arm, arm=names[1], against=names[0]))
    plan = Plan(
        version=1,
        study="compared",
        question="How do the two differ?",
        metric=Metric(name=metric),
        baseline=arms[0].name,
        arms=tuple(arms),
        contrasts=tuple(contrasts),
    )
    return assemble(plan, run_data, ())


def _run_data(run: Run) -> RunData:
    return RunData(run.missing or "not run") if run.record is None else RunData(run.record, run.measurements)


def _certainty(joint: Study, comparison: Comparison) -> tuple[ConfidenceInterval | None, str]:
    """Returns the 95 % interval, or None, and a text that names the seeds and documents that it covers, or the reason
    why there is none."""
    estimate = comparison.estimate
    if estimate is None:
        return None, comparison.reason or "-"
    if estimate.interval is not None:
        return estimate.interval, f"{estimate.seeds} seeds{' and documents' if comparison.documents else ''}"
    evidence, arms = gather(joint, []), list(comparison.weights)
    if reason := evidence.without_interval(arms, evidence.seeds(arms)):
        return None, reason
    resampled = evidence.at_documents(comparison.weights, evidence.seeds(arms))
    if resampled is None:
        return (
            None,
            "one seed, and no documents in common" if estimate.seeds == 1 else "every seed gives the same difference",
        )
    low, high = np.quantile(resampled.values.mean(axis=1), [LEVEL / 2, 1 - LEVEL / 2])
    return ConfidenceInterval(float(low), float(high)), f"{evidence.documents} documents"


def costs(one: ComparedSide, other: ComparedSide, pairs: list[ComparedArm]) -> Table:
    """Returns a table of every cost that both sides record, with the second as a multiple of the first."""
    columns = (
        Column("Cost"),
        Column("Arm"),
        Column(one.name),
        Column(other.name),
        Column("Ratio", "number", decimals=2),
        Column("95 % interval", "interval", decimals=2),
    )
    rows = []
    for key, title, kind in filled_costs([run for pair in pairs for run in (*pair.first, *pair.second)]):
        for pair in pairs:
            mine, theirs = mean_cost(pair.first, key), mean_cost(pair.second, key)
            if mine is not None and theirs is not None:
                texts = [Cell(plain(Cell(value), Column(title, kind))) for value in (mine, theirs)]
                rows.append((Cell(title), Cell(pair.arm), *texts, *_multiple(cost_ratio(pair.second, pair.first, key))))
    notes = ("Means over finished runs. Ratios of measured costs pair runs of the same seed.",)
    return Table("costs", "Costs", columns, tuple(rows), notes)


def _multiple(ratio: CostRatio | None) -> tuple[Cell, Cell]:
    """Returns the cells of a cost ratio and of its interval; a computed cost has none."""
    if ratio is None or not ratio.measured:
        return Cell(ratio.value if ratio else None), Cell()
    if ratio.interval is None:
        return Cell(ratio.value), Cell(missing="not measured often enough")
    return Cell(ratio.value), _interval_cell(ratio.interval)


def to_page(one: ComparedSide, other: ComparedSide, tables: Iterable[Table], notes: Iterable[str]) -> str:
    """Returns the comparison as a Markdown page."""
    blocks = [f"# {escape_markdown(one.name)} next to {escape_markdown(other.name)}"]
    blocks += [to_markdown(table).strip() for table in tables]
    blocks += ["\n".join(f"- {escape_markdown(note)}" for note in notes)] if notes else []
    return "\n\n".join(blocks) + "\n"
