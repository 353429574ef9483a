"""Tuning of a study: every arm is tuned in the same way, and the best configs are trained over the study's seeds.

An arm that wins at the baseline's learning rate may lose at its own best one. So every arm gets the same search over
the same space with the same budget. Values are selected on the validation split and reported on the test split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablations import catalog
from ablations.ablation import Ablation
from ablations.plan import PlannedStudy, Request, as_typed, make_plan
from lit_transformers.config import Config, ConfigError
from lit_transformers.records.measurement import SPLIT
from lit_transformers.records.plan import TunedArm, Tuning
from lit_transformers.runner import load_runner, runner_of
from lit_transformers.space import Choice, Conditional, Knob, is_own, parse_knobs, searched
from sweeps.tuning.search import Budget
from sweeps.tuning.tune import REPORTED_ON, SELECTED_ON, SearchedArm, TuningGoal, TuningResult, trial_config

__all__ = ["PreparedTuning", "prepare", "tuned_plan"]


@dataclass(frozen=True)
class PreparedTuning:
    """A study prepared for tuning: its plan without tuning, its arms with their search spaces, and the goal.

    typed: the study as the command line names it. own: whether the space that an arm's mixer declares is searched, too.
    from_wandb: whether agents of W&B have done the trials. added: the knobs that the command line adds.
    """

    planned: PlannedStudy
    ablation: Ablation
    request: Request
    arms: list[SearchedArm]
    goal: TuningGoal
    typed: str
    own: bool
    from_wandb: bool = False
    added: tuple[str, ...] = ()


def prepare(
    study: str, request: Request, runs: Path = Path("runs"), *, own: bool = False, added: Sequence[str] = ()
) -> PreparedTuning:
    """Prepares the arms of a study with their search spaces. own: include the space that an arm's mixer declares.

    added: knobs as they are typed, which win over the study's. Raises ConfigError where arms would be tuned
    differently, or could not be compared afterwards.
    """
    path = catalog.find(study)
    ablation = catalog.load(path)
    _require_tunable(ablation, own=own)
    if SPLIT in request.changes:
        raise ConfigError(f"cannot be set: values are selected on {SELECTED_ON} and reported on {REPORTED_ON}", SPLIT)
    planned = make_plan(path.stem, ablation, request, runs=runs, typed=study)
    resolved = ablation.resolve(request.scale, request.changes)
    fixed = {name for arm in resolved.arms for name in arm.overrides if not is_own(name)} | {*request.changes}
    runner = type(ablation.baseline)
    arms = []
    for arm, planned_arm in zip(resolved.arms, planned.plan.arms, strict=True):
        config: Config = runner.from_dict(planned.configs[planned_arm.runs[0].key])
        trial_config(config, {})  # raises where data have no splits
        space = searched(config, fixed | set(arm.overrides), own=own, added={**ablation.space, **parse_knobs(added)})
        arms.append(SearchedArm(arm.name, config, space, int(planned.costs[arm.name]["tokens"] or 0)))
    _require_same_search(arms)
    selected = load_runner(planned.runner).named_on(planned.metric, SELECTED_ON)
    goal = TuningGoal(selected, planned.plan.goal)
    return PreparedTuning(planned, ablation, request, arms, goal, study, own, added=tuple(added))


def tuned_plan(
    tuning: PreparedTuning, results: Sequence[TuningResult], budget: Budget, runs: Path = Path("runs")
) -> PlannedStudy:
    """Returns the plan of the study with every arm's best values. Raises ConfigError for an arm without any."""
    for result in results:
        if result.values is None:
            raise ConfigError(f"no trial of arm {result.arm!r} has finished; look at its runs' records, or add trials")
    tuned = {result.arm: {**(result.values or {}), SPLIT: REPORTED_ON} for result in results}
    study = tuning.planned.study
    planned = make_plan(study, tuning.ablation, tuning.request, tuned, runs)
    tune_command = ["python", "-m", "ablations", "tune", tuning.typed, *tuning.request.arguments()]
    tune_command += ["--trials", str(budget.trials)] if budget.trials else ["--tokens", str(budget.tokens)]
    tune_command += ["--with-mixer-space"] if tuning.own else []
    tune_command += [word for knob in tuning.added for word in ("--space", knob)]
    tune_command += ["--from-wandb"] if tuning.from_wandb else []
    plan = replace(planned.plan, study=f"{study}_tuned")
    report_command = ["python", "-m", "reports", "report", plan.folder]
    plan = replace(
        plan,
        protocol=f"{plan.protocol}; tuned on the {SELECTED_ON} split, measured on {REPORTED_ON}",
        commands={"run": as_typed(tune_command, runs), "report": as_typed(report_command, runs)},
        tuning=about(tuning, results, budget),
    )
    return replace(planned, plan=plan)


def about(tuning: PreparedTuning, results: Sequence[TuningResult], budget: Budget) -> Tuning:
    """Returns the facts of a tuning that a report needs: the budget, the splits, and the search space and result of
    each arm."""
    arms = {}
    for result, arm in zip(results, tuning.arms, strict=True):
        space = {path: _describe_knob(knob) for path, knob in arm.space.items()}
        arms[result.arm] = TunedArm(*result[1:8], space=space)
    return Tuning(
        budget={name: value for name, value in budget._asdict().items() if value is not None},
        metric=tuning.goal.metric,
        selected_on=SELECTED_ON,
        reported_on=REPORTED_ON,
        arms=arms,
    )


def _describe_knob(knob: Knob) -> dict[str, Any]:
    if isinstance(knob, Conditional):
        return _describe_knob(knob.knob) | {"if": {knob.path: knob.value}}
    return {"values": list(knob.values)} if isinstance(knob, Choice) else asdict(knob)


def _require_tunable(ablation: Ablation, *, own: bool) -> None:
    if not load_runner(runner_of(ablation.baseline)).measured_on_split(ablation.baseline, ablation.metric.name):
        raise ConfigError(f"{ablation.metric.name} is not measured on a split, so it cannot be tuned", "metric")
    if own and ablation.match is not None and ablation.match.on != "tokens":
        raise ConfigError(
            f"arms have the same {ablation.match.on}, which a mixer's own knobs change; leave out --with-mixer-space",
            "match",
        )


def _require_same_search(arms: Sequence[SearchedArm]) -> None:
    """Raises ConfigError where the shared part of the space differs between arms, or a space is empty."""
    first_shared = _shared_knobs(arms[0].space)
    for arm in arms:
        if not arm.space:
            raise ConfigError(f"arm {arm.name!r} has nothing to search: its arms fix all that a space is declared for")
        if _shared_knobs(arm.space) != first_shared:
            differing = sorted(
                path for path in {*first_shared, *arm.space} if first_shared.get(path) != arm.space.get(path)
            )
            raise ConfigError(
                f"arms {arms[0].name!r} and {arm.name!r} would be tuned differently: {', '.join(differing)}"
            )


def _shared_knobs(space: Mapping[str, Knob]) -> dict[str, Knob]:
    return {path: knob for path, knob in space.items() if not is_own(path)}
