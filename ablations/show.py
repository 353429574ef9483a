"""The tables that the commands print: studies, plans, gates and the state of runs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lit_transformers.config import Config
from lit_transformers.printing.amounts import assignments, count
from lit_transformers.printing.arm_names import BreakableName
from lit_transformers.records.labels import label_arms
from sweeps.ledger.ticket import State
from sweeps.live import clock
from sweeps.status import plain_table, work_table

if TYPE_CHECKING:
    from ablations.ablation import Ablation, SeedPlan
    from ablations.catalog import Headline
    from ablations.estimate import TimeEstimate
    from ablations.plan import PlannedStudy
    from lit_transformers.records.labels import ArmLabels
    from lit_transformers.records.plan import Plan, PlannedRates
    from lit_transformers.records.rate_values import RateValues
    from lit_transformers.records.record import Gate
    from lit_transformers.records.reproduction import Reproduction
    from reports.read.study import Study
    from sweeps.ledger.ledger import ActiveRun
    from sweeps.live import Row
    from sweeps.tuning.tune import TuningResult

__all__ = [
    "gate_table",
    "plan_view",
    "preliminary_view",
    "remaining_work",
    "reproduction_view",
    "status_view",
    "study_list",
    "study_view",
    "summary_line",
    "tuning_table",
]

SHOWN = ("model", "model.mixer", "model.stack", "task", "data", "data.source", "data.generator")
"""Parts whose kinds are shown of a baseline; ``python -m lit_transformers kinds`` lists all there are."""


def study_list(headlines: Iterable[Headline]) -> Table:
    """Returns a table of all studies with name, question and source."""
    table = plain_table("study", "question", "source")
    table.columns[0].no_wrap = True  # to be copied whole
    for headline in headlines:
        table.add_row(Text(headline.name, style="bold"), Text(headline.question), Text(headline.source))
    return table


def study_view(name: str, ablation: Ablation) -> Group:
    """Shows one study in full: question, factors and levels, scales and the arms that they leave out, and published
    numbers."""
    lines: list[RenderableType] = [Text(name, style="bold"), Text(ablation.question)]
    if ablation.source:
        source = ablation.source
        table = [f"table {source.table}"] if source.table else []
        lines.append(Text(", ".join([source.title, *([f"arXiv:{source.arxiv}"] if source.arxiv else []), *table])))
    criterion = f"{ablation.metric.name}{f', {ablation.metric.goal}d' if ablation.metric.goal else ''}"
    seeds = _seeds_text(ablation.seeds)
    lines.append(Text(f"metric {criterion}; design {ablation.design}; {seeds} seeds unless the scale differs"))
    if ablation.also:
        lines.append(Text(f"shown and not judged: {', '.join(metric.name for metric in ablation.also)}"))
    if ablation.metric.margin:
        lines.append(Text(f"equal within {ablation.metric.margin.size:g}: {ablation.metric.margin.reason}"))
    if ablation.match:
        solved = f", solving for {ablation.match.free}" if ablation.match.free else ""
        lines.append(Text(f"arms have the same {ablation.match.on}{solved}"))
    kinds = {path: value for path, value in ablation.baseline.leaves() if path.rsplit(".", 1)[-1] == "kind"}
    baseline_kinds = [f"{part} {kinds[f'{part}.kind']}" for part in SHOWN if f"{part}.kind" in kinds]
    classes = (item for item in ablation.baseline.leaves() if item[0].endswith(".class_path") and item[1])
    baseline_kinds += [f"{path.removesuffix('.class_path')} {name}" for path, name in classes]
    if baseline_kinds:
        lines.append(Text(f"baseline: {', '.join(baseline_kinds)}"))
    if ablation.preparation:
        lines.append(Text(f"weights that arms start from are fetched by: {ablation.preparation}"))
    lines += [Text(), _levels(ablation), Text(), _scales(ablation)]
    if ablation.published:
        lines += [Text(), _published(ablation)]
    return Group(*lines)


def _levels(ablation: Ablation) -> Table:
    table = plain_table("factor", "level", "overrides")
    for factor, levels in ablation.factors.items():
        for number, (level, overrides) in enumerate(levels.items()):
            head = Text("" if number else factor)
            table.add_row(head, Text(level), Text(_assignments(overrides) or "the baseline's"))
    for arm, overrides in ablation.arms.items():
        table.add_row(Text(""), Text(arm), Text(_assignments(overrides) or "the baseline"))
    return table


def _scales(ablation: Ablation) -> Table:
    table = plain_table("scale", "arms", "seeds", "overrides", "leaves out")
    for name, scale in ablation.scales.items():
        resolved = ablation.resolve(name)
        left_out = "; ".join(f"{selector} ({reason})" for selector, reason in scale.leave_out.items())
        table.add_row(
            Text(name),
            str(len(resolved.arms)),
            _seeds_text(resolved.seeds),
            Text(_assignments(scale.overrides)),
            Text(left_out),
        )
    return table


def _seeds_text(seeds: SeedPlan) -> str:
    """Returns a number of seeds, or those of a plan of looks, as text."""
    if isinstance(seeds, int):
        return str(seeds)
    return ", ".join(map(str, seeds.seeds)) + (f" from seed {seeds.first_seed} on" if seeds.first_seed else "")


def _published(ablation: Ablation) -> Table:
    published = ablation.published
    assert published
    arms = ablation.all_arms()
    labels = label_arms(arms, ablation.design, arms[0].name)
    table = plain_table(f"published {labels.heading('arm')}", published.metric, "note")
    for cell in published.cells:
        table.add_row(BreakableName(labels.in_column(cell.arm)), f"{cell.value:g}", Text(cell.note))
    for claim in published.claims:
        table.add_row(Text("claim"), "", Text(claim))
    table.caption, table.caption_justify = published.protocol, "left"
    return table


def _assignments(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{path}={_value(value)}" for path, value in overrides.items())


def _value(value: Any) -> str:
    """Returns a value as text: of a config its kind, and the fields that differ from their defaults."""
    if not isinstance(value, Config):
        return "null" if value is None else str(value)
    fields = dataclasses.fields(value)  # type: ignore[arg-type]  # that it is a dataclass, its class sees to
    changed = {f.name: getattr(value, f.name) for f in fields if getattr(value, f.name) != _default(f)}
    name = value.kind or type(value).__name__
    return f"{name}({_assignments(changed)})" if changed else name


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def plan_view(planned: PlannedStudy, time_estimate: TimeEstimate, done: set[str], workers: int) -> Group:
    """Shows a plan: every arm with its runs and costs, and how long the remaining runs will take."""
    plan, of_chain = planned.plan, _chain_column(planned.plan)
    titles = ("runs", "done", "params", "FLOPs a\ntoken", "train\nFLOPs", "tokens", "time", "matched")
    chain_titles = tuple(f"chain\n{'tokens' if part == 'chain_tokens' else 'FLOPs'}" for part in of_chain)
    table = plain_table(plan.labels.heading("arm"), *titles[:6], *chain_titles, *titles[6:])
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, keys in planned.keys_by_name().items():
        cost, matched = planned.costs[name], plan.match and plan.match.per_arm.get(name)
        alone = {f"chain_{part}": cost[part] for part in ("train_flops", "tokens")}  # of a run that starts from none
        table.add_row(
            BreakableName(plan.labels.in_column(name)),
            str(len(keys)),
            str(sum(key in done for key in keys)),
            *(count(cost[part]) for part in ("parameters", "flops_per_token", "train_flops", "tokens")),
            *(count((alone | cost)[part]) for part in of_chain),
            clock(time_estimate.seconds[keys[0]]),
            f"{matched.reached / matched.target - 1:+.2%}" if matched else "",
        )
    lines: list[RenderableType] = [
        Text(f"{plan.study}, scale {plan.scale}: {plan.protocol}"),
        table,
    ]
    for reason in dict.fromkeys(plan.omissions.values()):
        names = [name for name, other in plan.omissions.items() if other == reason]
        lines.append(Text(f"left out, {reason}: {'; '.join(names)}", style="dim"))
    lines += [Text(line) for line in chain_lines(planned)]
    lines.append(Text(remaining_work(time_estimate, done, workers)))
    if plan.rates is not None:
        lines.append(Text(runs_at_other_rates(plan, plan.rates, time_estimate, workers)))
    return Group(*lines)


def _chain_column(plan: Plan) -> tuple[str, ...]:
    """Returns the cost of all stages together that a plan shows: tokens where they are matched, and else FLOPs."""
    if not plan.stages:
        return ()
    return ("chain_tokens",) if plan.match and plan.match.on == "tokens" else ("chain_train_flops",)


def chain_lines(planned: PlannedStudy) -> Iterator[str]:
    """Yields lines on the runs that arms start from, and one on the stages that the matched budget covers."""
    plan = planned.plan
    places = {stage.name: stage.place for stage in plan.stages}
    for name, place in places.items():
        arm_name, _, path = place.partition(": ")
        yield f"{name}: the run in {path} of {arm_name}"
    for arm in plan.arms:
        if names := [stage.name for stage in plan.chain(arm.runs[0].sources)]:
            yield f"{plan.labels.alone(arm.name)} starts from {' and '.join(names)}"
    if plan.stages and plan.match is not None:
        whole = "all stages together" if plan.match.chain else "the last stage alone"
        yield f"the matched {plan.match.on} cover {whole}"


def runs_at_other_rates(plan: Plan, rates: PlannedRates, time_estimate: TimeEstimate, workers: int) -> str:
    """Returns a line on the runs at other learning rates, which follow those of the study: their number and time."""
    seconds = [time_estimate.seconds[run.key] for arm in plan.arms for run in arm.runs[: rates.seeds]]
    seconds *= len(rates.factors)
    factors, time = " and ".join(f"{factor:g}" for factor in rates.factors), clock(_total_seconds(seconds, workers))
    return f"then {len(seconds)} runs at {factors} times the learning rate, about {time}; --rates 0 omits them"


def rates_measured(plan: Plan, rates: RateValues | None) -> Iterator[Text]:
    """Yields a line on how many runs at other learning rates have a value; nothing where a plan states none.

    rates: values at other learning rates; None where none were measured for runs of the plan."""
    if rates is not None:
        values = sum(run.value is not None for run in rates.runs)
        yield Text(f"at other learning rates: {values} of {len(rates.runs)} runs have a value")
    elif plan.rates is not None:
        number = len(plan.rates.factors) * sum(len(arm.runs[: plan.rates.seeds]) for arm in plan.arms)
        yield Text(f"at other learning rates: {number} runs, not measured yet")


def _total_seconds(seconds: Sequence[float], workers: int) -> float:
    """Returns how long workers take for runs together, given the seconds of each run."""
    return sum(seconds) / min(workers, max(len(seconds), 1))


def remaining_work(time_estimate: TimeEstimate, done: set[str], workers: int) -> str:
    """Returns a sentence with the number of runs that are left, the time that they will take, and the basis of this
    estimate."""
    remaining = [seconds for key, seconds in time_estimate.seconds.items() if key not in done]
    total = _total_seconds(remaining, workers)
    worker_count = "1 worker" if workers == 1 else f"{workers} workers"
    return f"{len(remaining)} runs left, about {clock(total)} with {worker_count} ({time_estimate.basis})"


def gate_table(results: Mapping[str, Sequence[Gate]], labels: ArmLabels) -> Group:
    """Shows of every gate in how many arms it passed and failed, and below in which it failed, with the details, or
    does not apply."""
    names = list(dict.fromkeys(gate.name for gates in results.values() for gate in gates))
    table = plain_table("gate", "passed", "failed", "does not apply")
    exceptions: list[Text] = []
    for name in names:
        applied = {arm: gate for arm, gates in results.items() for gate in gates if gate.name == name}
        failed = {arm: gate for arm, gate in applied.items() if not gate.passed}
        left_out = [labels.alone(arm) for arm in results if arm not in applied]
        counts = (len(applied) - len(failed), len(failed), len(left_out))
        cells = [
            Text(str(number or "-"), style) for number, style in zip(counts, ("green", "bold red", "dim"), strict=True)
        ]
        table.add_row(Text(name), *cells)
        exceptions += [Text(f"{name}: {labels.alone(arm)}: {gate.detail}", "red") for arm, gate in failed.items()]
        exceptions += [Text(f"{name} does not apply to {', '.join(left_out)}", "dim")] if left_out else []
    return Group(Text(f"{len(results)} arms: {', '.join(map(labels.alone, results))}"), table, *exceptions)


def preliminary_view(plan: Plan, rows: Sequence[Row]) -> Group:
    """Shows a first comparison of all arms, over the one seed of which most of them have a value."""
    names = {arm.name for arm in plan.arms}
    of_arms = [row for row in rows if row.ticket.arm in names]
    values = {(row.ticket.arm, row.ticket.seed): row.value for row in of_arms if row.value is not None}
    counts = Counter(seed for _, seed in values)
    seed = min(counts, key=lambda seed: (-counts[seed], seed), default=rows[0].ticket.seed)
    baseline, by_ratio = plan.baseline, plan.metric.compare == "ratio"
    reference = values.get((baseline, seed))
    table = plain_table(plan.labels.heading("arm"), plan.metric.title, "ratio" if by_ratio else "difference")
    for arm in dict.fromkeys(row.ticket.arm for row in of_arms):
        value = values.get((arm, seed))
        comparison = ""
        if value is not None and reference is not None and arm != baseline:
            comparison = (
                f"{value / reference if reference else math.nan:.3g}" if by_ratio else f"{value - reference:+.3g}"
            )
        table.add_row(
            BreakableName(plan.labels.marked(arm)),
            "-" if value is None else f"{value:.4g}",
            comparison,
        )
    heading = f"Preliminary, from seed {seed} only. Intervals and verdicts follow with the other seeds."
    return Group(Text(), Text(heading, style="bold"), table, Text())


MOST_LINES = 500
"""Of a table with a line for every run."""


def status_view(
    plan: Plan, rows: Sequence[Row], active_runs: Mapping[str, ActiveRun], rates: RateValues | None = None
) -> Group:
    """Shows the state of every run by records, checkpoints and locks, and below who is at those that are active. Of
    more runs than MOST_LINES, seeds of an arm in the same state share a line with the mean of their metric.

    rates: values at other learning rates; None where none were measured."""
    labels = plan.labels
    table = plain_table(labels.heading("arm"), "seed", "run", plan.metric.name, "state")
    for column in table.columns[1:3]:
        column.no_wrap = True
    table.columns[3].header = BreakableName(plan.metric.name)
    for (arm, state), alike in _alike(rows):
        row, values = alike[0], [row.value for row in alike if row.value is not None]
        value = f"{statistics.fmean(values):.4g}" if values else ""
        run = (str(row.ticket.seed), row.ticket.key) if len(alike) == 1 else (f"{len(alike)} seeds", "")
        table.add_row(BreakableName(labels.in_column(arm)), *run, value, Text(state))
    shown = [active_runs[row.ticket.key] for row in rows if row.ticket.key in active_runs and not row.state.over]
    at_work = work_table(shown, labels.heading("arm"), lambda run: labels.in_column(run.arm))
    work: list[RenderableType] = [Text(), at_work, Text()] if shown else []
    return Group(table, *work, Text(summary_line(rows)), *rates_measured(plan, rates))


def _alike(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, str], list[Row]]]:
    """Yields the runs of each line of a table with their arm and state: one run or, where there are more than
    MOST_LINES, all seeds of an arm that are in the same state."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        place = row.ticket.arm, row.state.value + (f": {row.reason}" if row.reason else "")
        if len(rows) > MOST_LINES:
            groups.setdefault(place, []).append(row)
        else:
            yield place, [row]
    yield from groups.items()


def summary_line(rows: Sequence[Row]) -> str:
    """Returns a line that counts the runs in each state."""
    counts = {state: sum(row.state == state for row in rows) for state in State}
    summary = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    return f"{len(rows)} runs: {summary}"


def reproduction_view(published: Study, reproductions: Sequence[Reproduction]) -> Group:
    """Shows published runs next to their repetitions, and how far seeds of the same arm lie from each other."""
    labels = published.plan.labels
    table = plain_table(labels.heading("arm"), "seed", "published", "repeated", "difference", "deviation\nof seeds")
    for one in reproductions:
        seeds = [run.value for run in published.finished(one.arm)]
        deviation = f"{statistics.stdev(seeds):.2g}" if len(seeds) > 1 else "-"
        difference = "none" if one.is_equal else f"{one.repeated - one.published:+.2g}"
        name, values = BreakableName(labels.in_column(one.arm)), (f"{one.published:.7g}", f"{one.repeated:.7g}")
        table.add_row(name, str(one.seed), *values, difference, deviation)
    equal = sum(one.is_equal for one in reproductions)
    summary = f"{published.plan.metric.title}; {equal} of {len(reproductions)} equal to the last digit"
    if equal < len(reproductions):
        summary += "; other processors and versions round differently; to compare, repeat the published commit here"
    return Group(table, Text(summary))


def tuning_table(metric: str, results: Iterable[TuningResult], labels: ArmLabels) -> Table:
    """Returns a table of every arm's search: its trials, its tokens, the best value of the metric and its settings."""
    table = plain_table(labels.heading("arm"), "trials", "pruned", "failed", "tokens", f"best {metric}", "values")
    for column in table.columns[1:-1]:
        column.no_wrap = True
    for result in results:
        best = "" if result.value is None else f"{result.value:.4g}"
        counts = (str(number) for number in (result.trials, result.pruned, result.failed))
        table.add_row(
            BreakableName(labels.in_column(result.arm)),
            *counts,
            count(result.tokens or None),
            best,
            Text("\n".join(assignments(result.values or {}))),
        )
    return table
