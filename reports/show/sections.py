"""The tables of a report, made from a study and its comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lit_transformers.records.labels import ArmLabels
from lit_transformers.records.plan import PublishedCell
from lit_transformers.records.reference import Reference
from reports.judge.agreement import matching_arms
from reports.judge.comparisons import Comparison
from reports.judge.costs import is_measured
from reports.judge.fairness import cost_of, environments, mean_cost, place_of, provenance, spent
from reports.judge.findings import Findings
from reports.judge.known import KnownShare, share
from reports.judge.matrix import DECODING_STATE
from reports.judge.statistics import ConfidenceInterval
from reports.read.study import Run, Study
from reports.show.bleu_tests import bleu_tests
from reports.show.forgetting import forgetting_table
from reports.show.names import name_comparisons
from reports.show.rates import rate_table, rates_of_arms
from reports.show.seeds import seed_table
from reports.show.tables import Cell, Column, Kind, Table, fixed
from reports.show.tuned import tuned

TOKENS, PLANNED = "tokens", "planned_tokens"
TOKEN_SPEED, EXAMPLE_SPEED = "tokens_per_second", "examples_per_second"
COSTS: Sequence[tuple[str, str, Kind]] = (
    ("parameters", "Parameters", "count"),
    ("flops_per_token", "FLOPs per token", "count"),
    (TOKENS, "Tokens", "count"),
    (PLANNED, "Tokens planned", "count"),
    ("seconds", "Time", "seconds"),
    ("state_bytes", "State", "bytes"),
    (DECODING_STATE, "Numbers held in decoding", "count"),
    ("peak_memory_bytes", "Peak memory", "bytes"),
    ("packed_bytes", "Packed checkpoint", "bytes"),
    ("time_ratio", "Time of a batch, ratio to the start", "number"),
    ("latency_ratio", "Time of a text, ratio to the start", "number"),
    ("passage_bytes", "States of a passage", "bytes"),
    ("train_flops", "FLOPs of training", "count"),
    (TOKEN_SPEED, "Tokens per second", "count"),
    (EXAMPLE_SPEED, "Examples per second", "count"),
    ("embedding_parameters", "Parameters of embeddings", "count"),
)

ROUNDING = 0.005
"""Planned tokens are shown next to the tokens that were read where these differ by more than this share."""
OF_CHAINS: Sequence[tuple[str, str, Kind]] = (
    ("chain_tokens", "Tokens of all stages", "count"),
    ("chain_train_flops", "FLOPs of training all stages", "count"),
)
"""Costs of the runs of a study in which some start from others."""

SHARE = "Share of the known optimum"
"""How far a value has come from the value of a model that knows nothing to the best possible one."""

MOST_INTERACTIONS = 12
"""The number of interactions that are printed; the CSV holds all."""

_BUDGETS: Mapping[str, Kind] = {"seconds": "seconds", "memory": "bytes"}


def all_tables(findings: Findings) -> tuple[Table, ...]:
    """Returns every table that has rows, in print order. Where a battery's rows are compared, they come before its
    arms."""
    contrasts = [c for c in findings.comparisons if c.kind == "contrast"]
    effects = findings.effects
    main = sum(effect.kind == "main effect" for effect in effects)
    kind = "Differences" if findings.study.plan.unpaired else "Paired differences"
    title = "Main effects" if main == len(effects) else "Main effects and interactions"
    effects_table = replace(differences(findings, effects, "effects", title), most=main + MOST_INTERACTIONS)
    of_rows = (ranking(findings), effects_table) if findings.battery and findings.study.plan.effects else ()
    tables = (
        *of_rows,
        results(findings),
        forgetting_table(findings.study),
        known(findings),
        floors(findings),
        stages(findings),
        context(findings),
        *([] if of_rows else [ranking(findings)]),
        differences(findings, contrasts, "differences", kind),
        frequencies(findings),
        rate_table(findings),
        rates_of_arms(findings),
        *([] if of_rows else [effects_table]),
        *(further_differences(further, number) for number, further in enumerate(findings.further, start=1)),
        bleu_tests(findings),
        published(findings),
        costs(findings.study),
        matching(findings.study),
        tuned(findings.study, findings.decimals),
        intervals(findings),
        seed_table(findings),
        left_out(findings.study),
    )
    return tuple(table for table in tables if table.rows)


def results(findings: Findings) -> Table:
    """Returns a table of the mean and standard deviation over seeds of each arm, or of why there is none."""
    study, decimals = findings.study, findings.decimals
    columns = (
        _arm_column(study),
        Column("Mean ± standard deviation", "number", findings.metric.title, decimals),
        *([Column(SHARE, "percent")] if findings.references else []),
        *(Column(one.metric.title, "number", decimals=one.decimals) for one in findings.further),
        Column("Seeds"),
    )
    rows = []
    for arm in study.plan.arms:
        finished, planned = study.finished(arm.name), study.of(arm.name)
        name = Cell(arm.name, label=study.plan.labels.marked(arm.name))
        mean = _mean_cell(finished, planned)
        share = [_share_of_arm(findings.shares.get(arm.name))] if findings.references else []
        others = [_mean_cell(one.study.finished(arm.name), one.study.of(arm.name)) for one in findings.further]
        rows.append((name, mean, *share, *others, Cell(_seeds_text(finished, planned))))
    about = (*_better(findings), *_about_shares(findings))
    notes = (*about, floor_text(findings), provenance(study))
    return Table("results", "Results", columns, tuple(rows), notes, findings.metric.title)


def _better(findings: Findings) -> Iterator[str]:
    """Yields the better direction of the metric that judges, and of each that does not."""
    for one in (findings, *findings.further):
        better = f"{'lower' if one.metric.goal == 'minimize' else 'higher'} value is better"
        yield f"A {better}." if one is findings else f"For {one.metric.title}, a {better}; no verdict uses it."


def _arm_column(study: Study) -> Column:
    return Column(study.plan.labels.heading("Arm"))


def _arm_cell(study: Study, arm: str, place: str = "") -> Cell:
    """Returns the cell of an arm. place: where its runs were done, of some that were brought in."""
    from_place = f", from {place}" if place else ""
    return Cell(f"{arm}{from_place}", label=f"{study.plan.labels.in_column(arm)}{from_place}")


def known(findings: Findings) -> Table:
    """Returns a table of the values of the metric that are known before anything is trained, the best possible one
    last."""
    by_data = findings.study.plan.references_by_data
    columns = (
        *([Column("Data")] if len(by_data) > 1 else []),
        Column("Model"),
        Column("Value", "number", findings.metric.title, findings.decimals),
        Column(SHARE, "percent"),
    )
    rows = tuple(
        (
            *([Cell(data)] if len(by_data) > 1 else []),
            Cell(reference.name),
            Cell(reference.value),
            _share_cell(references, reference.value),
        )
        for data, references in by_data.items()
        for reference in references
    )
    return Table("known", "Reference losses", columns, rows, unit=findings.metric.title)


def floors(findings: Findings) -> Table:
    """Returns a table of the values of simple predictors, and by how much the baseline is better than each."""
    unit, decimals = findings.metric.title, findings.decimals
    by_arm = findings.floors
    columns = (
        *([Column("Compared with")] if len(by_arm) > 1 else []),
        Column("Simple predictor"),
        Column("Value", "number", unit, decimals),
        Column("The baseline is better by", "number", unit, decimals),
    )
    rows = tuple(
        (
            *([_arm_cell(findings.study, arm)] if len(by_arm) > 1 else []),
            Cell(floor.name),
            Cell(floor.value),
            Cell(findings.study.gain_over(floor, arm)),
        )
        for arm, floors in by_arm.items()
        for floor in (*floors.values, *floors.document)
    )
    notes = ["Floors learn from the data of the baseline, without the mechanisms of the study."]
    if any(floors.document for floors in by_arm.values()):
        names = dict.fromkeys(floor.name for floors in by_arm.values() for floor in floors.document)
        notes.append(f"More than its networks see, and no floor: {', '.join(names)}.")
    return Table("floors", "Floors: simple predictors", columns, rows, tuple(notes), unit)


def stages(findings: Findings) -> Table:
    """Returns a table of the value that each stage reaches, next to the best simple predictor on its data."""
    columns = (
        Column("Stage"),
        Column("Arms that start from it"),
        Column("Metric"),
        Column("Value", "number", decimals=4),
        Column("Simple predictor"),
        Column("Its value", "number", decimals=4),
    )
    rows = []
    for stage in findings.stages:
        floor, best = stage.floor, stage.floor.best
        arms = ", ".join(map(findings.study.plan.labels.in_column, stage.arms))
        value = Cell(missing="no finished run") if stage.value is None and best else Cell(stage.value)
        predictor = (Cell(best.name), Cell(best.value)) if best else (Cell(missing=floor.reason), Cell())
        rows.append((Cell(floor.name), Cell(arms), Cell(floor.metric), value, *predictor))
    notes = ("A stage that is no better than the simple predictor has learned too little for its arms to answer.",)
    return Table("stages", "Stages: their values and floors", columns, tuple(rows), notes)


def context(findings: Findings) -> Table:
    """Returns a table of the baseline's loss with its context cut to rising lengths, and of the gain beyond each."""
    columns = (
        Column("Symbols of context", "count"),
        Column("Loss", "number", "bits per symbol"),
        Column("Beyond this length", "number", "bits per symbol"),
    )
    losses = findings.study.context.losses if findings.study.context else ()
    rows = tuple((Cell(cut.length), Cell(cut.bits), Cell(cut.beyond, spread=cut.error)) for cut in losses)
    notes = (
        "The baseline's first run, measured again at a sample of positions with all but the last symbols cut off. "
        "Nothing is trained. ± is the standard error over positions.",
    )
    return Table("context", "Gain of the baseline from its context", columns, rows, notes, "bits per symbol")


def floor_text(findings: Findings) -> str:
    """Returns a sentence on the best floor and the baseline, or on why there is no floor."""
    floors, floor = findings.study.floors, findings.study.floor
    if floors is None:
        return "The floor was not measured." if findings.study.knows_configs else "The table names no floor."
    if floor is None:
        return f"There is no floor: {floors.reason or 'no simple predictor has a value'}."
    gain = findings.study.gain_over(floor)
    if gain is None:
        return f"The best floor is {fixed(floor.value, findings.decimals)} ({floor.name})."
    size = fixed(abs(gain), findings.decimals)
    if gain > 0:
        return f"The baseline beats the best floor ({floor.name}) by {size}."
    return f"The baseline does not beat the best floor ({floor.name}): it is worse by {size}."


def ranking(findings: Findings) -> Table:
    """Returns a table of the levels of a factor by their mean accuracy over the levels of one that changes the data."""
    matrix = findings.battery
    if matrix is None:
        return Table("ranking", "", (), ())
    columns = (
        Column(matrix.rows),
        Column("Mean", "number", findings.metric.title, findings.decimals),
        Column("95 % interval", "interval", findings.metric.title, findings.decimals),
        *([Column("Numbers held in decoding", "count")] if matrix.states else []),
    )
    rows = []
    for level in matrix.levels:
        accuracy = matrix.means.get(level)
        state = [Cell(matrix.states.get(level))] if matrix.states else []
        if accuracy is None:
            rows.append((Cell(level), Cell(missing="not all have finished"), Cell(), *state))
        else:
            rows.append((Cell(level), Cell(accuracy.mean), _interval_cell(findings, accuracy.interval), *state))
    notes = ("An interval is of that mean alone: whether two means differ is for the paired differences to say.",)
    title = f"Mean over {len(matrix.tasks)} levels of {matrix.columns}"
    return Table("ranking", title, columns, tuple(rows), notes, findings.metric.title)


def _share_of_arm(known: KnownShare | None) -> Cell:
    """Returns the share of the known optimum that an arm has learned, with half of its interval."""
    if known is None:
        return Cell()
    low, high = known.interval or (None, None)
    return Cell(known.share, None if low is None or high is None else (high - low) / 2, low, high)


def _about_shares(findings: Findings) -> Iterator[str]:
    """Yields the meaning of ± in the shares of the known optimum, and of shares above 100 %."""
    shares, label = findings.shares, findings.study.plan.labels.alone
    if not shares:
        return
    without = [label(arm) for arm, known in shares.items() if known.interval is None]
    none = f"; there is none for {', '.join(without)}" if without else ""
    yield f"± is half of the 95 % interval, over seeds and documents{none}."
    above = {arm: known.interval for arm, known in shares.items() if known.share > 1}
    certain = [label(arm) for arm, interval in above.items() if interval and interval.low > 1]
    other = [label(arm) for arm, interval in above.items() if not interval or interval.low <= 1]
    if other:
        yield (
            f"More than 100 %, within chance: {', '.join(other)}. The optimum holds for all that "
            "the source may give; the measurement is a sample."
        )
    if certain:
        yield (f"More than 100 %, and not by chance: {', '.join(certain)}. Look for a leak in the data or the metric.")


def _share_cell(references: Sequence[Reference], value: float | str | None) -> Cell:
    """Returns how far a value has come from that of who knows nothing to the best possible one, or an empty cell."""
    learned = share(references, value) if isinstance(value, float) else None
    return Cell() if learned is None else Cell(learned)


def _mean_cell(finished: Sequence[Run], planned: Sequence[Run]) -> Cell:
    if not finished:
        return Cell(missing="; ".join(_reasons(planned)) or "no runs planned")
    values = [run.value for run in finished]
    return Cell(float(np.mean(values)), spread=float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _seeds_text(finished: Sequence[Run], planned: Sequence[Run]) -> str:
    if len(finished) in (0, len(planned)):
        return f"{len(finished)}" if finished else f"0 of {len(planned)}"
    return f"{len(finished)} of {len(planned)} ({'; '.join(_reasons(planned))})"


def _reasons(planned: Iterable[Run]) -> list[str]:
    """Returns why runs are missing, each reason once, with its seeds where not all runs share it."""
    runs = list(planned)
    by_reason: dict[str, list[str]] = {}
    for run in runs:
        if run.missing:
            by_reason.setdefault(run.missing, []).append(str(run.seed))
    return [
        reason if len(seeds) == len(runs) else f"seed {', '.join(seeds)} {reason}"
        for reason, seeds in by_reason.items()
    ]


def differences(findings: Findings, comparisons: Sequence[Comparison], name: str, title: str) -> Table:
    """Returns a table of comparisons with their intervals and the verdicts that follow from them."""
    decimals, unit = findings.difference_decimals, findings.difference_unit
    names = name_comparisons(findings.study.plan, comparisons)
    columns = (
        Column(names.heading("Comparison")),
        Column("Ratio" if findings.ratio else "Difference", "number", unit, decimals),
        Column("95 % interval", "interval", unit, decimals),
        Column("Verdict"),
        Column("p (Holm)", "p", detail=True),
        *([Column("p (equal)", "p", detail=True)] if findings.margin else []),
        Column("Seeds", "count", detail=True),
        Column("Smallest detectable", "number", unit, decimals, detail=True),
        Column("Seeds needed", detail=True),
    )
    rows = tuple(
        (Cell(one.name, label=names.levels[one.name]), *_comparison_cells(findings, one, len(columns) - 1))
        for one in comparisons
    )
    notes = [f"Equal: {findings.margin}."] if findings.margin else []
    notes += _doubts(comparisons, names.levels)
    if width := findings.about_width:
        notes.append(f"Over seeds, {width}.")
    if any(one.verdict == "unresolved" and excludes_zero(one) for one in comparisons):
        notes.append(
            "Intervals are of one comparison each; verdicts allow for all of them (p after Holm's correction)."
        )
    return Table(name, title, columns, rows, tuple(notes), unit)


def _doubts(comparisons: Sequence[Comparison], levels: Mapping[str, str]) -> Iterator[str]:
    """Yields why verdicts were taken back, each reason once, and the share of runs beyond the margin that the seeds of
    equal arms do not exclude."""
    by_doubt: dict[str, list[str]] = {}
    for one in comparisons:
        if one.doubt:
            by_doubt.setdefault(one.doubt, []).append(levels[one.name])
    for doubt, doubted in by_doubt.items():
        yield f"{', '.join(doubted)}: {doubt}."
    for one in comparisons:
        if one.verdict == "equal" and one.beyond:
            count, total = one.beyond
            yield (
                f"{levels[one.name]}: {count} of {total} seeds lie beyond the margin, which does not exclude that "
                f"{one.share_not_excluded:.0%} of runs do."
            )


_LEARNED = (
    "A seed has learned if it comes at least a stated share of the way from what is reached without learning to the "
    "best value; a run that diverged has not. Differences of these comparisons are of the seeds in which both arms "
    "have learned."
)
_REACHED = "A run that {event} has a time; differences are of the seeds in which the runs of both arms have one."


def frequencies(findings: Findings) -> Table:
    """Returns a table of how often arms learn, where one of a comparison learns in some seeds and not in others."""
    label, test = findings.study.plan.labels.alone, "Fisher" if findings.study.plan.unpaired else "McNemar"
    columns = (
        Column("Comparison"),
        Column("Arm"),
        Column("Reached in" if findings.metric.event else "Learned in", "count"),
        Column("Seeds", "count"),
        Column("95 % interval", "interval", decimals=2),
        Column(f"p ({test})", "p"),
        Column("Verdict"),
    )
    rows = []
    for one in findings.shown:
        frequency = one.frequency
        for arm, count in frequency.learned.items() if frequency else ():
            assert frequency is not None
            low, high = frequency.interval(arm)
            verdict = Cell("differs" if frequency.is_decided else "unresolved")
            cells = (Cell(count), Cell(frequency.seeds[arm]), Cell(low=low, high=high), Cell(frequency.p), verdict)
            rows.append((Cell(one.name), Cell(label(arm)), *cells))
    event = findings.metric.event
    notes = (_REACHED.format(event=event) if event else _LEARNED,)
    return Table(
        "frequencies", f"How often an arm {event}" if event else "How often arms learn", columns, tuple(rows), notes
    )


def further_differences(further: Findings, number: int) -> Table:
    """Returns a table of the comparisons by a metric that does not judge, the n-th one, with their intervals."""
    decimals, unit = further.difference_decimals, further.difference_unit
    names = name_comparisons(further.study.plan, further.shown)
    columns = (
        Column(names.heading("Comparison")),
        Column("Ratio" if further.ratio else "Difference", "number", unit, decimals),
        Column("95 % interval", "interval", unit, decimals),
        Column("Seeds", "count", detail=True),
        Column("Documents", "count", detail=True),
    )
    rows = []
    for one in further.shown:
        name, estimate = Cell(one.name, label=names.levels[one.name]), one.estimate
        if estimate is None:
            rows.append((name, Cell(missing=one.reason), *[Cell()] * 3))
            continue
        documents = Cell(one.documents) if one.documents else Cell(missing="seeds only")
        difference, interval = Cell(further.as_printed(estimate.difference)), _interval_cell(further, estimate.interval)
        rows.append((name, difference, interval, Cell(estimate.seeds), documents))
    notes = ("This metric judges nothing: its intervals are of one comparison each, and no verdict follows from them.",)
    return Table(f"further_{number}", "Paired differences, not judged", columns, tuple(rows), notes, unit)


def excludes_zero(comparison: Comparison) -> bool:
    """Returns whether the interval of a comparison lies on one side of zero."""
    interval = comparison.estimate.interval if comparison.estimate else None
    return interval is not None and not interval[0] <= 0 <= interval[1]


def _comparison_cells(findings: Findings, comparison: Comparison, columns: int) -> tuple[Cell, ...]:
    estimate = comparison.estimate
    if estimate is None:
        return Cell(missing=comparison.reason), *[Cell()] * (columns - 1)
    verdict = Cell(comparison.verdict) if comparison.verdict else Cell(missing=f"none: {comparison.reason}")
    detectable = comparison.detectable
    return (
        Cell(findings.as_printed(estimate.difference)),
        _interval_cell(findings, estimate.interval),
        verdict,
        Cell(comparison.adjusted),
        *([Cell(comparison.equality)] if findings.margin else []),
        Cell(estimate.seeds),
        Cell(None if detectable is None else findings.as_printed(detectable)),
        Cell(seeds_needed(comparison)),
    )


def seeds_needed(comparison: Comparison) -> str | None:
    """Returns as text how many seeds would decide a comparison, or None where it cannot be computed."""
    estimate = comparison.estimate
    if estimate is None or estimate.p is None:
        return None
    needed = comparison.seeds_needed
    if needed is not None:
        return str(needed)
    return "over 1,000, or more documents" if comparison.documents else "over 1,000"


def intervals(findings: Findings) -> Table:
    """Returns a table of the interval that decides verdicts, next to the two that do not."""
    decimals, unit = findings.difference_decimals, findings.difference_unit
    names = name_comparisons(findings.study.plan, findings.shown)
    columns = (
        Column(names.heading("Comparison")),
        Column("Seeds and documents", "interval", unit, decimals),
        Column("Student's t over seeds", "interval", unit, decimals),
        Column("Percentile bootstrap", "interval", unit, decimals),
        Column("Documents", "count"),
    )
    rows = tuple(
        (
            Cell(comparison.name, label=names.levels[comparison.name]),
            _interval_cell(findings, estimate.interval),
            _interval_cell(findings, estimate.over_seeds),
            _interval_cell(findings, estimate.bootstrap),
            Cell(comparison.documents) if comparison.documents else Cell(missing="seeds only"),
        )
        for comparison in findings.shown
        if (estimate := comparison.estimate) and estimate.interval
    )
    notes = (
        "The first interval decides verdicts. Student's t takes the evaluation documents as fixed; the percentile "
        "bootstrap over seeds and documents is too narrow for few seeds and serves comparison with other work.",
    )
    main = sum(comparison.kind != "interaction" for comparison in findings.comparisons)
    return Table("intervals", "Intervals at 95 %", columns, rows, notes, unit, main + MOST_INTERACTIONS)


def _interval_cell(findings: Findings, interval: ConfidenceInterval | None) -> Cell:
    if interval is None:
        return Cell()
    return Cell(low=findings.as_printed(interval.low), high=findings.as_printed(interval.high))


def costs(study: Study) -> Table:
    """Returns a table of the costs of each arm as means over its runs, with the standard deviation of measured ones.

    Columns that no record fills are omitted. Runs that were brought in from elsewhere have separate rows, for their
    times are of other machines.
    """
    shown = [*COSTS, *(OF_CHAINS if study.plan.stages else ())]
    filled = filled_costs(study.runs, shown)
    rows: list[tuple[Cell, list[Cell]]] = []
    for arm in study.plan.arms:
        finished = study.finished(arm.name)
        for place in sorted({place_of(run) for run in finished}) or [""]:
            runs = [run for run in finished if place_of(run) == place]
            rows.append((_arm_cell(study, arm.name, place), [_cost_cell(runs, key) for key, _, _ in filled]))
    columns = (_arm_column(study), *(Column(title, kind, detail=i > 1) for i, (_, title, kind) in enumerate(filled)))
    cells = tuple((arm_cell, *row) for arm_cell, row in rows)
    hardware = environments(study, "hardware")
    notes = [f"Measured on {'; '.join(hardware)}."] if hardware else []
    if any(cell.spread is not None for _, row in rows for cell in row):
        notes.insert(0, "Means over runs; ± is the standard deviation of measured costs.")
    return Table("costs", "Cost", columns, cells if filled else (), tuple(notes))


def filled_costs(runs: Sequence[Run], costs: Sequence[tuple[str, str, Kind]] = COSTS) -> list[tuple[str, str, Kind]]:
    """Returns those of the costs that finished runs record, by key, title and kind: the planned tokens unless every run
    is known to have read as many, to rounding; and of the speeds, examples a second where all runs record it, or else
    tokens a second."""
    finished = [run for run in runs if run.missing is None]
    filled = [cost for cost in costs if any(cost_of(run, cost[0]) is not None for run in finished)]
    pairs = [(cost_of(run, TOKENS), cost_of(run, PLANNED)) for run in finished]
    is_planned = all(read is not None and planned and abs(read / planned - 1) <= ROUNDING for read, planned in pairs)
    by_examples = bool(finished) and all(cost_of(run, EXAMPLE_SPEED) is not None for run in finished)
    omitted = {*([PLANNED] if is_planned else []), TOKEN_SPEED if by_examples else EXAMPLE_SPEED}
    return [cost for cost in filled if cost[0] not in omitted]


def _cost_cell(runs: Sequence[Run], key: str) -> Cell:
    values = [value for run in runs if (value := cost_of(run, key)) is not None]
    varies = len(values) > 1 and is_measured(runs, key)
    return Cell(mean_cost(runs, key), spread=float(np.std(values, ddof=1)) if varies else None)


def published(findings: Findings) -> Table:
    """Returns a table of the source's numbers and ours in separate columns, for their scales differ. Arms have their
    whole names where the source has others that are not run, which share less with them."""
    plan = findings.study.plan
    if plan.published is None:
        return Table("published", "", (), ())
    are_labelled = all(len(matching_arms(plan.arms, cell)) == 1 for cell in plan.published.cells)
    labels = plan.labels if are_labelled else ArmLabels()
    columns = (
        Column(labels.heading("Arm")),
        Column("Published", "number", plan.published.metric, _printed_decimals(plan.published.cells)),
        Column("Note"),
        Column("Ours", "number", findings.metric.title, findings.decimals),
    )
    rows = tuple(_published_row(findings.study, cell, labels) for cell in plan.published.cells)
    notes = (
        f"Published: {plan.published.protocol.text}",
        f"Ours: {plan.protocol or 'protocol not stated'}",
        "The two columns are on different scales: compare the order within each, not values across.",
        *(f"The source claims: {claim}" for claim in plan.published.claims),
    )
    source = f" in {plan.source.title}" if plan.source else ""
    return Table("published", f"Published{source}, next to ours", columns, rows, notes)


def _printed_decimals(cells: Iterable[PublishedCell]) -> int:
    """Returns the largest number of decimals among the source's numbers."""
    return max((len(f"{cell.value:.6g}".partition(".")[2]) for cell in cells), default=0)


def _published_row(study: Study, cell: PublishedCell, labels: ArmLabels) -> tuple[Cell, ...]:
    arms = matching_arms(study.plan.arms, cell)
    if len(arms) == 1:
        name = Cell(arms[0].name, label=labels.in_column(arms[0].name))
        ours = _mean_cell(study.finished(arms[0].name), study.of(arms[0].name))
    else:
        name = Cell(cell.arm if isinstance(cell.arm, str) else _levels(cell.arm))
        ours = Cell(missing="several arms" if arms else "not run here")
    return name, Cell(cell.value), Cell(cell.note), ours


def _levels(levels: Mapping[str, str]) -> str:
    return " ".join(f"{factor}={level}" for factor, level in levels.items())


def matching(study: Study) -> Table:
    """Returns a table of how closely each arm meets the matched budget, as planned and as measured."""
    match = study.plan.match
    if match is None:
        return Table("match", "", (), ())
    kind = _BUDGETS.get(match.on, "count")
    columns = (
        _arm_column(study),
        Column("Target", kind, detail=True),
        Column("Planned", kind, detail=True),
        Column("Off by", "percent"),
        Column("Measured", kind, detail=True),
        Column("Off the baseline by", "percent"),
    )
    base = spent(study, study.plan.baseline)
    rows = tuple(
        (
            _arm_cell(study, arm),
            Cell(matched.target),
            Cell(matched.reached),
            Cell(_relative_excess(matched.reached, matched.target)),
            Cell(spent(study, arm)),
            Cell(_relative_excess(spent(study, arm), base)),
        )
        for arm, matched in match.per_arm.items()
    )
    solved = f"Solved for by {match.free}. " if match.free else ""
    notes = (f"{solved}Arms that lie more than {match.tolerance:.0%} apart, planned or measured, get no verdict.",)
    return Table("match", f"Matched on {match.on}", columns, rows, notes)


def _relative_excess(value: float | None, target: float | None) -> float | None:
    return value / target - 1 if value is not None and target else None


def left_out(study: Study) -> Table:
    """Returns a table of the levels and arms that this scale does not run, with the reasons."""
    rows = tuple((Cell(name), Cell(reason)) for name, reason in study.plan.omissions.items())
    return Table("left_out", "Omitted at this scale", (Column("Arm"), Column("Reason")), rows)
