"""The folded details of each arm on the page: config changes, gates, runs, and observations of its mixers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from lit_transformers.config import plain_leaves
from lit_transformers.records.record import Record
from reports.judge.fairness import cost_of
from reports.judge.findings import Findings
from reports.read.study import Run
from reports.show.markup import Html, details, element, escape, items, name_of, pairs
from reports.show.observed import observed
from reports.show.sections import filled_costs
from reports.show.tables import Cell, Column, Kind, Table, fixed, to_html

_ABSENT = "not there"


def arm_details(findings: Findings) -> Iterator[Html]:
    """Yields one folded element for each arm, in the order of the plan."""
    study = findings.study
    base = _first_record(study.of(study.plan.baseline))
    for arm in study.plan.arms:
        runs = study.of(arm.name)
        record = _first_record(runs)
        progress = f"{len(study.finished(arm.name))} of {len(runs)} seeds finished"
        if arm.name == study.plan.baseline:
            progress = f"baseline, {progress}"
        name = study.plan.labels.alone(arm.name)
        summary = Html(name_of(name) + element("span", f" · {progress}", class_="facts"))
        levels = Html() if [*arm.levels.values()] == [name] else pairs(arm.levels.items())
        facts = _facts_of_configs(record, base) if study.knows_configs else ()
        yield details(summary, levels, *facts, *_runs_table(findings, runs), *observed(runs))


def _first_record(runs: tuple[Run, ...]) -> Record | None:
    """Returns the record of the first finished run or, where none has finished, of the first run that has a record."""
    runs_with_record = sorted((run for run in runs if run.record is not None), key=lambda run: run.missing is not None)
    return runs_with_record[0].record if runs_with_record else None


def _facts_of_configs(record: Record | None, base: Record | None) -> Iterator[Html]:
    if record is None:
        return
    if base is not None and base is not record:
        changed = list(differences(base.config, record.config))
        yield _titled("Differences from the baseline", _changes_list(changed) if changed else escape("Nothing."))
    failed = [gate for gate in record.gates if not gate.passed]
    if record.gates:
        tally = f"{len(record.gates) - len(failed)} of {len(record.gates)} passed"
        gate_list = items(
            f"{gate.name}: {'passed' if gate.passed else 'failed'}, {gate.detail}" for gate in record.gates
        )
        yield _titled("Gates", details(tally, gate_list, opened=bool(failed)))


def _titled(title: str, inside: Html) -> Html:
    return Html(element("h3", title) + inside) if inside else Html()


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the paths at which two configs differ, with both values as on a command line; seeds are left out."""
    base_leaves, other_leaves = dict(plain_leaves(base)), dict(plain_leaves(other))
    for path in chain(base_leaves, (path for path in other_leaves if path not in base_leaves)):
        base_value, other_value = (
            _value_text(side[path]) if path in side else _ABSENT for side in (base_leaves, other_leaves)
        )
        if base_value != other_value and not path.endswith("seed"):
            yield path, base_value, other_value


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _changes_list(changed: list[tuple[str, str, str]]) -> Html:
    list_items = (
        element("li", element("code", path), f": {base_value} → {other_value}")
        for path, base_value, other_value in changed
    )
    return element("ul", *list_items)


def _runs_table(findings: Findings, runs: tuple[Run, ...]) -> Iterator[Html]:
    """Yields a table with a row for each seed: its outcome, its value and its costs; of a large study, a line with the
    values."""
    if findings.study.is_large:
        decimals = max(3, findings.decimals)
        values = (f"{run.seed}: {run.missing or fixed(run.value, decimals)}" for run in runs)
        yield element("p", f"{findings.metric.title} by seed: {', '.join(values)}.")
        return
    costs = filled_costs(runs)
    number: Kind = "number"
    columns = (
        Column("Seed"),
        Column("Outcome"),
        Column(findings.metric.title, number, decimals=max(3, findings.decimals)),
        *(Column(title, kind) for _, title, kind in costs),
    )
    rows = tuple(
        (
            Cell(str(run.seed)),
            Cell("finished") if run.missing is None else Cell(missing=run.missing),
            Cell(run.value) if run.missing is None else Cell(),
            *(Cell(cost_of(run, key)) for key, _, _ in costs),
        )
        for run in runs
    )
    if rows:
        yield to_html(Table("runs", "Runs", columns, rows))
