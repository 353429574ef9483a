"""What a page unfolds for each arm: what sets it apart, its gates, its seeds, and what it was seen to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from lit_transformers.config import plain_leaves
from reports.fairness import cost_of
from reports.markup import Html, details, element, escape, items, name_of, pairs
from reports.observed import observed
from reports.plans import Arm
from reports.records import Record, Run
from reports.sections import COSTS, Findings
from reports.tables import Cell, Column, Kind, Table, to_html

_ABSENT = "not there"


def arm_details(findings: Findings) -> Iterator[Html]:
    """One folded part for each arm, in the order of the plan."""
    study = findings.study
    base = _first_record(study.of(study.plan.baseline))
    for arm in study.plan.arms:
        runs = study.of(arm.name)
        record = _first_record(runs)
        said = f"{len(study.finished(arm.name))} of {len(runs)} seeds finished"
        if arm.name == study.plan.baseline:
            said = f"baseline, {said}"
        summary = Html(name_of(arm.name) + element("span", f" · {said}", class_="facts"))
        yield details(summary, *_about(arm, record, base), *_runs(findings, runs), *observed(runs))


def _first_record(runs: tuple[Run, ...]) -> Record | None:
    """Of the first run that has one, a finished one where there is any."""
    found = sorted((run for run in runs if run.record is not None), key=lambda run: run.missing is not None)
    return found[0].record if found else None


def _about(arm: Arm, record: Record | None, base: Record | None) -> Iterator[Html]:
    if arm.levels:
        yield pairs((factor, level) for factor, level in arm.levels.items())
    if record is None:
        return
    if base is not None and base is not record:
        changed = list(differences(base.config, record.config))
        yield _titled("What differs from the baseline", _changes(changed) if changed else escape("Nothing."))
    broken = [gate for gate in record.gates if not gate.passed]
    if record.gates:
        said = f"{len(record.gates) - len(broken)} of {len(record.gates)} passed"
        listed = items(f"{gate.name}: {'passed' if gate.passed else 'failed'}, {gate.detail}" for gate in record.gates)
        yield _titled("Gates", details(said, listed, opened=bool(broken)))


def _titled(title: str, inside: Html) -> Html:
    return Html(element("h3", title) + inside) if inside else Html()


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Paths of two configs that differ, with both values as they are written on a command line."""
    ours, theirs = dict(plain_leaves(base)), dict(plain_leaves(other))
    for path in chain(ours, (path for path in theirs if path not in ours)):
        one, two = (_value(side[path]) if path in side else _ABSENT for side in (ours, theirs))
        if one != two and not path.endswith("seed"):
            yield path, one, two


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _changes(changed: list[tuple[str, str, str]]) -> Html:
    lines = (element("li", element("code", path), f": {one} → {two}") for path, one, two in changed)
    return element("ul", *lines)


def _runs(findings: Findings, runs: tuple[Run, ...]) -> Iterator[Html]:
    """A row for each seed: its outcome, its value and what it cost."""
    kept = [cost for cost in COSTS if any(cost_of(run, cost[0]) is not None for run in runs)]
    number: Kind = "number"
    columns = (
        Column("Seed"),
        Column("Outcome"),
        Column(findings.metric.title, number, decimals=max(3, findings.decimals)),
        *(Column(title, kind) for _, title, kind in kept),
    )
    rows = tuple(
        (
            Cell(str(run.seed)),
            Cell("finished") if run.missing is None else Cell(missing=run.missing),
            Cell(run.value) if run.missing is None else Cell(),
            *(Cell(cost_of(run, key)) for key, _, _ in kept),
        )
        for run in runs
    )
    if rows:
        yield to_html(Table("runs", "Runs", columns, rows))
