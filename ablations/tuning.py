"""A study with every arm at its best: each is tuned alike, and the winners are trained over the study's seeds.

An arm that wins at the baseline's learning rate may lose at its own. So every arm gets the same search over the same
space with the same budget. What is chosen on the validation split is reported on the test split.
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
from sweeps.search import Budget
from sweeps.tune import REPORTED_ON, SELECTED_ON, SPLIT, Arm, Found, Goal, trial_config

__all__ = ["Tuning", "prepare", "tuned_plan"]

METRICS = "val/"


@dataclass(frozen=True)
class Tuning:
    """A study made ready: its plan without tuning, its arms with their spaces, and what decides.

    typed: the study as the command line names it. own: whether what an arm's mixer declares is searched, too.
    """

    plan: Plan
    ablation: Ablation
    request: Request
    arms: list[Arm]
    goal: Goal
    typed: str
    own: bool


def prepare(study: str, request: Request, runs: Path = Path("runs"), *, own: bool = False) -> Tuning:
    """The arms of a study with what is searched in each. own: with the space that an arm's mixer declares.

    Raises ConfigError where arms would not be tuned alike, or could not be compared afterwards.
    """
    path = catalog.find(study)
    ablation = catalog.load(path)
    _require_tunable(ablation, own=own)
    plan = make_plan(path.stem, ablation, request, runs=runs, typed=study)
    resolved = ablation.resolve(request.scale, request.changes)
    fixed = {name for arm in resolved.arms for name in arm.overrides if not is_own(name)}
    runner = type(ablation.baseline)
    arms = []
    for arm, planned in zip(resolved.arms, plan.document["arms"], strict=True):
        config: Config = runner.from_dict(plan.configs[planned["runs"][0]["key"]])
        trial_config(config, {})  # raises where data have no splits
        space = searched(config, fixed | set(arm.overrides), own=own)
        arms.append(Arm(arm.name, config, space, int(plan.costs[arm.name]["tokens"])))
    _require_alike(arms)
    return Tuning(plan, ablation, request, arms, Goal(ablation.metric.name, ablation.metric.goal), study, own)


def tuned_plan(tuning: Tuning, found: Sequence[Found], budget: Budget, runs: Path = Path("runs")) -> Plan:
    """The plan that answers the study with every arm as its search found it. Raises ConfigError for an arm without."""
    for one in found:
        if one.values is None:
            raise ConfigError(f"no trial of arm {one.arm!r} has finished; look at its runs' records, or add trials")
    tuned = {one.arm: {**(one.values or {}), SPLIT: REPORTED_ON} for one in found}
    study = tuning.plan.study
    plan = make_plan(study, tuning.ablation, tuning.request, tuned, runs)
    again = ["python", "-m", "sweeps", "tune", tuning.typed, *tuning.request.arguments()]
    again += ["--trials", str(budget.trials)] if budget.trials else ["--tokens", str(budget.tokens)]
    again += ["--with-mixer-space"] if tuning.own else []
    name = f"{study}_tuned"
    shown = ["python", "-m", "reports", "report", folder_of(plan.document | {"study": name})]
    named = {
        "study": name,
        "protocol": f"{plan.document['protocol']}; tuned on the {SELECTED_ON} split, measured on {REPORTED_ON}",
        "commands": {"run": as_typed(again, runs), "report": as_typed(shown, runs)},
        "tuning": about(tuning, found, budget),
    }
    return replace(plan, document=plan.document | named)


def about(tuning: Tuning, found: Sequence[Found], budget: Budget) -> dict[str, Plain]:
    """What a report has to say: the budget, the space, the splits, and what each arm's search came to."""
    return {
        "budget": {name: value for name, value in budget._asdict().items() if value is not None},
        "metric": tuning.goal.metric,
        "selected_on": SELECTED_ON,
        "reported_on": REPORTED_ON,
        "arms": {
            one.arm: {name: value for name, value in one._asdict().items() if name != "arm"}
            | {"space": {path: _told(knob) for path, knob in arm.space.items()}}
            for one, arm in zip(found, tuning.arms, strict=True)
        },
    }


def _told(knob: Knob) -> dict[str, Any]:
    return {"values": list(knob.values)} if isinstance(knob, Choice) else asdict(knob)


def _require_tunable(ablation: Ablation, *, own: bool) -> None:
    if not ablation.metric.name.startswith(METRICS):
        raise ConfigError(f"{ablation.metric.name} is not measured on a split; only {METRICS}... is tuned", "metric")
    if own and ablation.match is not None and ablation.match.on != "tokens":
        raise ConfigError(
            f"arms have the same {ablation.match.on}, which a mixer's own knobs change; leave out --with-mixer-space",
            "match",
        )


def _require_alike(arms: Sequence[Arm]) -> None:
    """Raises ConfigError where the shared part differs between arms, or where there is nothing to search."""
    first = _shared(arms[0].space)
    for arm in arms:
        if not arm.space:
            raise ConfigError(f"arm {arm.name!r} has nothing to search: its arms fix all that a space is declared for")
        if _shared(arm.space) != first:
            differing = sorted(path for path in {*first, *arm.space} if first.get(path) != arm.space.get(path))
            raise ConfigError(
                f"arms {arms[0].name!r} and {arm.name!r} would be tuned differently: {', '.join(differing)}"
            )


def _shared(space: Mapping[str, Knob]) -> dict[str, Knob]:
    return {path: knob for path, knob in space.items() if not is_own(path)}
