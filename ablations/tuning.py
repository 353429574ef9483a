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
from ablations.plan import Plan, Request, as_typed, folder_of, make_plan
from lit_transformers.config import Config, ConfigError, Plain
from lit_transformers.space import Choice, Knob, is_own, searched
from sweeps.tuning.search import Budget
from sweeps.tuning.tune import REPORTED_ON, SELECTED_ON, SPLIT, Arm, Goal, TuningResult, trial_config

__all__ = ["Tuning", "prepare", "tuned_plan"]

METRICS = "val/"


@dataclass(frozen=True)
class Tuning:
    """A study prepared for tuning: its plan without tuning, its arms with their search spaces, and the goal.

    typed: the study as the command line names it. own: whether the space that an arm's mixer declares is searched, too.
    """

    plan: Plan
    ablation: Ablation
    request: Request
    arms: list[Arm]
    goal: Goal
    typed: str
    own: bool


def prepare(study: str, request: Request, runs: Path = Path("runs"), *, own: bool = False) -> Tuning:
    """Prepares the arms of a study with their search spaces. own: include the space that an arm's mixer declares.

    Raises ConfigError where arms would be tuned differently, or could not be compared afterwards.
    """
    path = catalog.find(study)
    ablation = catalog.load(path)
    _require_tunable(ablation, own=own)
    plan = make_plan(path.stem, ablation, request, runs=runs, typed=study)
    resolved = ablation.resolve(request.scale, request.changes)
    fixed = {name for arm in resolved.arms for name in arm.overrides if not is_own(name)}
    runner = type(ablation.baseline)
    arms = []
    for arm, arm_document in zip(resolved.arms, plan.document["arms"], strict=True):
        config: Config = runner.from_dict(plan.configs[arm_document["runs"][0]["key"]])
        trial_config(config, {})  # raises where data have no splits
        space = searched(config, fixed | set(arm.overrides), own=own)
        arms.append(Arm(arm.name, config, space, int(plan.costs[arm.name]["tokens"])))
    _require_same_search(arms)
    return Tuning(plan, ablation, request, arms, Goal(ablation.metric.name, ablation.metric.goal), study, own)


def tuned_plan(tuning: Tuning, results: Sequence[TuningResult], budget: Budget, runs: Path = Path("runs")) -> Plan:
    """Returns the plan of the study with every arm's best values. Raises ConfigError for an arm without any."""
    for result in results:
        if result.values is None:
            raise ConfigError(f"no trial of arm {result.arm!r} has finished; look at its runs' records, or add trials")
    tuned = {result.arm: {**(result.values or {}), SPLIT: REPORTED_ON} for result in results}
    study = tuning.plan.study
    plan = make_plan(study, tuning.ablation, tuning.request, tuned, runs)
    tune_command = ["python", "-m", "ablations", "tune", tuning.typed, *tuning.request.arguments()]
    tune_command += ["--trials", str(budget.trials)] if budget.trials else ["--tokens", str(budget.tokens)]
    tune_command += ["--with-mixer-space"] if tuning.own else []
    name = f"{study}_tuned"
    report_command = ["python", "-m", "reports", "report", folder_of(plan.document | {"study": name})]
    additions = {
        "study": name,
        "protocol": f"{plan.document['protocol']}; tuned on the {SELECTED_ON} split, measured on {REPORTED_ON}",
        "commands": {"run": as_typed(tune_command, runs), "report": as_typed(report_command, runs)},
        "tuning": about(tuning, results, budget),
    }
    return replace(plan, document=plan.document | additions)


def about(tuning: Tuning, results: Sequence[TuningResult], budget: Budget) -> dict[str, Plain]:
    """Returns what a report needs: the budget, the splits, and the search space and result of each arm."""
    return {
        "budget": {name: value for name, value in budget._asdict().items() if value is not None},
        "metric": tuning.goal.metric,
        "selected_on": SELECTED_ON,
        "reported_on": REPORTED_ON,
        "arms": {
            result.arm: {name: value for name, value in result._asdict().items() if name != "arm"}
            | {"space": {path: _describe_knob(knob) for path, knob in arm.space.items()}}
            for result, arm in zip(results, tuning.arms, strict=True)
        },
    }


def _describe_knob(knob: Knob) -> dict[str, Any]:
    return {"values": list(knob.values)} if isinstance(knob, Choice) else asdict(knob)


def _require_tunable(ablation: Ablation, *, own: bool) -> None:
    if not ablation.metric.name.startswith(METRICS):
        raise ConfigError(f"{ablation.metric.name} is not measured on a split; only {METRICS}... is tuned", "metric")
    if own and ablation.match is not None and ablation.match.on != "tokens":
        raise ConfigError(
            f"arms have the same {ablation.match.on}, which a mixer's own knobs change; leave out --with-mixer-space",
            "match",
        )


def _require_same_search(arms: Sequence[Arm]) -> None:
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
