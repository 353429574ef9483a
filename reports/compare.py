"""Any two runs or any two studies beside each other: configs path by path, metrics with intervals, costs as ratios.

Two studies are joined to one that has each arm of both twice, so that what makes a report compares them. Two runs have
one seed each: their intervals are over the documents alone, and say nothing of how another seed would have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lit_transformers.config import nearest, plain_leaves
from lit_transformers.files import PLAN, RECORD
from reports.comparisons import Comparison
from reports.comparisons import compare as compare_arms
from reports.costs import CostRatio, cost_ratio
from reports.evidence import gather
from reports.fairness import mean_cost
from reports.plans import Arm, Contrast, Metric, Plan, PlannedRun
from reports.publish import PUBLISHED, published
from reports.records import ReportError, Run, Study, Told, assemble, load_study, read_run, require_name
from reports.results import RESULTS, read_results
from reports.sections import COSTS
from reports.statistics import LEVEL, Interval
from reports.tables import Cell, Column, Table, escape_markdown, plain, to_markdown

_ALL = "all arms"


@dataclass(frozen=True)
class Side:
    """One of the two: a study, or a run as a study of a single arm."""

    name: str
    kind: Literal["run", "study"]
    study: Study


@dataclass(frozen=True)
class Pair:
    """An arm that both sides have, under the name that it has in both."""

    arm: str
    one: tuple[Run, ...]
    other: tuple[Run, ...]


def find_side(name: str, runs: Path, folder: Path = PUBLISHED) -> Side:
    """A run or a study: by its folder, a run's key, or a study's name, run here or published.

    Raises ReportError that names what can be given.
    """
    path = Path(name)
    if path.is_dir():
        return _from_folder(path)
    require_name(name, "run or study")
    if (runs / name / RECORD).is_file():
        return _run_side(runs / name)
    if (runs / "studies" / name / PLAN).is_file():
        return Side(name, "study", load_study(runs, name))
    if (folder / name / RESULTS).is_file():
        return Side(name, "study", read_results(folder / name / RESULTS))
    known = {found.parent.name for found in runs.glob("studies/*/plan.json")} | {one.name for one in published(folder)}
    raise ReportError(f"{name}: no folder, no run of {runs} and no study; {nearest(name, known)}")


def _from_folder(path: Path) -> Side:
    if (path / RECORD).is_file():
        return _run_side(path)
    if (path / RESULTS).is_file():
        return Side(path.name, "study", read_results(path / RESULTS))
    if (path / PLAN).is_file():
        return Side(path.name, "study", load_study(path.resolve().parent.parent, path.resolve().name))
    raise ReportError(
        f"{path}: holds neither record.json nor {RESULTS} nor plan.json; give a run's or a study's folder"
    )


def _run_side(directory: Path) -> Side:
    notes: list[str] = []
    told = read_run(directory, notes)
    if isinstance(told.record, str):
        raise ReportError(f"{directory}: the run cannot be compared: {'; '.join(notes) or told.record}")
    name, metrics = directory.resolve().name, list(told.record.metrics)
    arm = Arm(name="the run", runs=(PlannedRun(seed=told.record.seed, key=name),))
    metric = Metric(name=metrics[0] if metrics else "no metric")
    plan = Plan(version=1, study=name, question=name, metric=metric, baseline=arm.name, arms=(arm,))
    return Side(name, "run", assemble(plan, {name: told}, notes))


def compare(one: Side, other: Side) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """The tables that have rows, and notes.

    Raises ReportError: a run and a study, no arm that both have, or nothing that has run on both sides.
    """
    if one.kind != other.kind:
        raise ReportError(f"{one.name} is a {one.kind} and {other.name} a {other.kind}; compare two of the same kind")
    pairs = list(_pairs(one.study, other.study))
    if not pairs:
        arms = ", ".join(arm.name for arm in one.study.plan.arms)
        raise ReportError(f"{one.name} and {other.name} have no arm in common; the arms of {one.name}: {arms}")
    notes = [*one.study.notes, *other.study.notes]
    made = (configs(one, other, pairs), metrics(one, other, pairs, notes), costs(one, other, pairs))
    tables = [table if one.kind == "study" else _without_arms(table) for table in made if table.rows]
    if not tables:
        raise ReportError(_why_nothing(one, other))
    return tuple(tables), tuple(dict.fromkeys(notes))


def _why_nothing(one: Side, other: Side) -> str:
    """Why there is nothing to compare: what has not run, or that nothing that has is of the same arm."""
    lacking = [side for side in (one, other) if side.study.missing() == len(side.study.runs)]
    if not lacking:
        return f"{one.name} and {other.name} have no arm of which a run has finished on both sides; finish one of each"
    reasons = [f"{side.name}: no run has finished ({', '.join(_reasons(side.study))})" for side in lacking]
    ways = [command for side in lacking if (command := side.study.plan.commands.get("run"))]
    return "; ".join([*dict.fromkeys(reasons), f"run it by: {ways[0]}" if ways else "run it first"])


def _reasons(study: Study) -> list[str]:
    return list(dict.fromkeys(run.missing for run in study.runs if run.missing)) or ["no runs are planned"]


def _without_arms(table: Table) -> Table:
    """A table of two runs: there is one arm, and it has no name."""
    kept = [place for place, column in enumerate(table.columns) if column.title != "Arm"]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows)


def _pairs(one: Study, other: Study) -> Iterator[Pair]:
    for arm in one.plan.arms:
        if found := other.of(arm.name):
            yield Pair(arm.name, one.of(arm.name), found)


def configs(one: Side, other: Side, pairs: list[Pair]) -> Table:
    """What differs between the configs, path by path; seeds apart, where there are several of them."""
    columns = (Column("Arm"), Column("Path"), Column(one.name), Column(other.name))
    differing = {pair.arm: _differing(pair, seeds=one.kind == "run") for pair in pairs}
    everywhere = [line for line in differing[pairs[0].arm] if all(line in lines for lines in differing.values())]
    rows = [(Cell(_ALL), *map(Cell, line)) for line in everywhere] if len(pairs) > 1 else []
    for arm, lines in differing.items():
        rows += [(Cell(arm), *map(Cell, line)) for line in lines if len(pairs) == 1 or line not in everywhere]
    return Table("configs", "What differs in the configs", columns, tuple(rows))


def _differing(pair: Pair, seeds: bool) -> list[tuple[str, str, str]]:
    """Path and both values; the first run of each side that has a record speaks for its arm."""
    one, other = (next((run.record for run in runs if run.record), None) for runs in (pair.one, pair.other))
    if one is None or other is None:
        return []
    mine, theirs = _texts(one.config), _texts(other.config)
    told = [(path, mine.get(path, "-"), theirs.get(path, "-")) for path in dict.fromkeys([*mine, *theirs])]
    return [line for line in told if line[1] != line[2] and (seeds or line[0] not in ("seed", "data.seed"))]


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Every value of a config, as text, by its dotted path."""
    return {path: "null" if value is None else str(value) for path, value in plain_leaves(config)}


def metrics(one: Side, other: Side, pairs: list[Pair], notes: list[str]) -> Table:
    """Every number that both sides report, and the second's difference to the first's."""
    columns = (
        Column("Metric"),
        Column("Arm"),
        Column(one.name, "number", decimals=4),
        Column(other.name, "number", decimals=4),
        Column("Difference", "number", decimals=4),
        Column("95 % interval", "interval", decimals=4),
        Column("Over"),
    )
    rows = []
    for name in _common_metrics(pairs):
        joint = join(one.study, other.study, pairs, name)
        comparisons = compare_arms(joint, notes)
        for pair, comparison in zip(pairs, comparisons, strict=True):
            means = [mean_of(joint, arm) for arm in reversed(list(comparison.weights))]
            interval, over = _certainty(joint, comparison)
            ends = Cell() if interval is None else Cell(low=interval.low, high=interval.high)
            difference = comparison.estimate.difference if comparison.estimate else None
            rows.append((Cell(name), Cell(pair.arm), *map(Cell, means), Cell(difference), ends, Cell(over)))
    told = f"Differences are {other.name} minus {one.name}, over the seeds that both have."
    alone = "An interval over documents alone says nothing of other seeds."
    return Table("metrics", "Metrics", columns, tuple(rows), (told, alone))


def _common_metrics(pairs: list[Pair]) -> list[str]:
    mine = [name for pair in pairs for run in pair.one if run.record for name in run.record.metrics]
    theirs = {name for pair in pairs for run in pair.other if run.record for name in run.record.metrics}
    return [name for name in dict.fromkeys(mine) if name in theirs]


def join(one: Study, other: Study, pairs: list[Pair], metric: str) -> Study:
    """Both sides as one study: each common arm twice, and a contrast of the second with the first."""
    arms, contrasts = [], []
    told: dict[str, Told] = {}
    for number, pair in enumerate(pairs):
        names = (f"{number} one", f"{number} other")
        for name, runs in zip(names, (pair.one, pair.other), strict=True):
            told |= {f"{name} {place}": _told(run) for place, run in enumerate(runs)}
            # The two runs of a comparison are one pair, whatever their seeds.
            seeds = [run.seed for run in runs] if len(runs) > 1 else [0]
            planned = [PlannedRun(seed=seed, key=f"{name} {place}") for place, seed in enumerate(seeds)]
            arms.append(Arm(name=name, runs=tuple(planned)))
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
    return assemble(plan, told, ())


def _told(run: Run) -> Told:
    return Told(run.missing or "not run") if run.record is None else Told(run.record, run.measurements)


def mean_of(study: Study, arm: str) -> float | None:
    """The mean of an arm's runs; None where none has finished."""
    values = [run.value for run in study.finished(arm)]
    return float(np.mean(values)) if values else None


def _certainty(joint: Study, comparison: Comparison) -> tuple[Interval | None, str]:
    """An interval, and what it is over: seeds, and documents where both have the same ones."""
    found = comparison.estimate
    if found is None:
        return None, comparison.reason or "-"
    if found.interval is not None:
        return found.interval, f"{found.seeds} seeds{' and documents' if comparison.documents else ''}"
    evidence, arms = gather(joint, []), list(comparison.weights)
    if reason := evidence.without_interval(arms, evidence.seeds(arms)):
        return None, reason
    resampled = evidence.at_documents(comparison.weights, evidence.seeds(arms))
    if resampled is None:
        return (
            None,
            "one seed, and no documents in common" if found.seeds == 1 else "every seed gives the same difference",
        )
    low, high = np.quantile(resampled.values.mean(axis=1), [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(low), float(high)), f"{evidence.documents} documents"


def costs(one: Side, other: Side, pairs: list[Pair]) -> Table:
    """Every cost that both sides tell, and the second's as a multiple of the first's."""
    columns = (
        Column("Cost"),
        Column("Arm"),
        Column(one.name),
        Column(other.name),
        Column("Ratio", "number", decimals=2),
        Column("95 % interval", "interval", decimals=2),
    )
    rows = []
    for key, title, kind in COSTS:
        for pair in pairs:
            mine, theirs = mean_cost(pair.one, key), mean_cost(pair.other, key)
            if mine is not None and theirs is not None:
                shown = [Cell(plain(Cell(value), Column(title, kind))) for value in (mine, theirs)]
                rows.append((Cell(title), Cell(pair.arm), *shown, *_multiple(cost_ratio(pair.other, pair.one, key))))
    notes = ("Means over the runs that finished. Ratios of what was measured are those of runs of the same seed.",)
    return Table("costs", "Costs", columns, tuple(rows), notes)


def _multiple(ratio: CostRatio | None) -> tuple[Cell, Cell]:
    """A ratio of costs, and its interval if it needs one."""
    if ratio is None or not ratio.measured:
        return Cell(ratio.value if ratio else None), Cell()
    if ratio.interval is None:
        return Cell(ratio.value), Cell(missing="not measured often enough")
    return Cell(ratio.value), Cell(low=ratio.interval.low, high=ratio.interval.high)


def to_page(one: Side, other: Side, tables: Iterable[Table], notes: Iterable[str]) -> str:
    """The comparison as a Markdown page."""
    blocks = [f"# {escape_markdown(one.name)} beside {escape_markdown(other.name)}"]
    blocks += [to_markdown(table).strip() for table in tables]
    blocks += ["\n".join(f"- {escape_markdown(note)}" for note in notes)] if notes else []
    return "\n\n".join(blocks) + "\n"
