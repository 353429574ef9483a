"""Plans the arms of a study at other learning rates, and keeps their values: whether a verdict depends on the rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ablations.plan import PlannedStudy
from ablations.stages import Stages
from lit_transformers.records.plan import PlannedArm, PlannedRates
from lit_transformers.records.rate_values import RateRun, RateValues, write_rates
from lit_transformers.records.study_folder import rates_group
from lit_transformers.runner import load_runner
from sweeps.ledger.run_records import read_record

__all__ = ["keep_rates", "plan_rates"]


def plan_rates(planned: PlannedStudy, rates: PlannedRates) -> PlannedStudy:
    """Returns the first seeds of all arms at the other learning rates, as a study with an arm for each arm and rate.

    Runs that have no learning rate, because they train nothing, are those of the study. For a process that has imported
    the runner.
    """
    runner = load_runner(planned.runner)
    stages, arms, costs = Stages(runner), list[PlannedArm](), {}
    for factor in rates.factors:
        for arm in planned.plan.arms:
            runs = []
            for run in arm.runs[: rates.seeds]:
                config = runner.config.from_dict(planned.configs[run.key])
                changes = {path: config.get(path) * factor for path in runner.rate_fields(config)}
                runs.append(stages.planned(config.override(changes), run.seed, arm.name))
            name = rate_arm(arm.name, factor)
            arms.append(PlannedArm(name, {**arm.levels, "rate": f"x{factor:g}"}, tuple(runs)))
            costs[name] = planned.costs[arm.name]
    for stage in stages.stages.values():
        costs[stage.name] = next(planned.costs[one.name] for one in planned.plan.stages if one.key == stage.key)
    plan = replace(
        planned.plan, study=rates_group(planned.study), arms=tuple(arms), stages=tuple(stages.stages.values()),
        baseline=arms[0].name, design="", factors={}, contrasts=None, effects=None, answer=None, looks=None, rates=None,
        retention=(), published=None, tuning=None, references=(),
    )  # fmt: skip
    return PlannedStudy(plan, stages.configs, costs, planned.runner, sources=planned.sources)


def rate_arm(arm: str, factor: float) -> str:
    """Returns the name of an arm at a factor of its learning rate."""
    return f"{arm} rate=x{factor:g}"


def keep_rates(runs: Path, planned: PlannedStudy, scaled: PlannedStudy, rates: PlannedRates) -> Iterator[str]:
    """Writes the values of the runs at other learning rates next to the plan, and yields why runs have none.

    scaled: the study of ``plan_rates``."""
    values = tuple(_values(runs, planned, scaled, rates))
    write_rates(runs, planned.folder, RateValues(planned.metric, values))
    for run in values:
        if run.missing:
            yield f"{rate_arm(run.arm, run.factor)}, seed {run.seed}: {run.missing}"


def _values(runs: Path, planned: PlannedStudy, scaled: PlannedStudy, rates: PlannedRates) -> Iterator[RateRun]:
    """Yields each run at another rate with its value, or why it has none."""
    scaled_arms = {arm.name: arm for arm in scaled.plan.arms}
    for factor in rates.factors:
        for arm in planned.plan.arms:
            for own, run in zip(arm.runs, scaled_arms[rate_arm(arm.name, factor)].runs, strict=False):
                record, note = read_record(runs / run.key)
                begun = RateRun(arm.name, run.seed, factor, own.key, run.key)
                if record is None:
                    yield replace(begun, missing=note or "not run")
                elif record.outcome != "finished":
                    yield replace(
                        begun, missing=f"{record.outcome}: {record.reason}" if record.reason else record.outcome
                    )
                else:
                    yield replace(begun, value=record.value(planned.metric))
