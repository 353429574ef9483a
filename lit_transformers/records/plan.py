"""The plan of a study, as ``plan.json`` holds it: its question, arms, runs, and the published numbers of its source."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer

from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.records.files import PLAN, write_json
from lit_transformers.records.labels import ArmLabels, label_arms
from lit_transformers.records.measure import Goal, published_goal
from lit_transformers.records.reference import Reference
from lit_transformers.records.schema import IF_ANY, LEFT_OUT, Checked, Label, Name, Number, parse, to_plain
from lit_transformers.records.study_folder import folder_name, require_name

__all__ = [
    "Contrast",
    "LeftOut",
    "LookPlan",
    "Margin",
    "Matched",
    "MatchedBudget",
    "Metric",
    "Plan",
    "PlannedArm",
    "PlannedRates",
    "PlannedRetention",
    "PlannedRun",
    "PlannedStage",
    "Protocol",
    "PublishedCell",
    "PublishedNumbers",
    "Quantity",
    "RetentionRuns",
    "Source",
    "TunedArm",
    "Tuning",
    "load_plan",
    "parse_plan",
    "plan_path",
    "plan_to_plain",
    "write_plan",
]

VERSION = 1

Quantity = Literal["mean", "median", "mean where learned"]
"""The quantity that a study estimates from the values of an arm's seeds."""


@dataclass(frozen=True)
class Source(Checked):
    """The paper that a study reproduces. ``table`` names the table or figure."""

    title: Name
    arxiv: str | None = None
    table: str | None = None


@dataclass(frozen=True)
class Margin(Checked):
    """The smallest effect that anybody would care about, and the reason why it is that one.

    ``size`` is in units of the metric or, where the metric compares by ratio, a ratio between 1 and 2: 1.05 for 5 %.
    """

    size: Number
    reason: str = ""

    def check(self) -> None:
        if not (self.size > 0 and math.isfinite(self.size)):
            raise ConfigError(f"the smallest effect that matters is above zero; got {self.size!r}", "margin.size")
        if not self.reason.strip():
            raise ConfigError("a margin says in a line why a smaller effect would not matter", "margin.reason")


@dataclass(frozen=True)
class Metric(Checked):
    """The metric of a run's record that decides. Rates that span magnitudes are compared by ratio.

    goal: whether less or more is better; None: the goal that the objective or the module of the runs states, which is
    then in the plan. ``margin`` is stated before anything is trained; without one no comparison is called equal.
    quantity: the quantity that is estimated from an arm's seeds: their median, which few seeds can bound for any
    distribution; the mean of those that have learned, also where others diverged; or, with None, the mean.
    learned: the share of the way from the value of who knows nothing, or from the best floor, to the best value, from
    which on a seed has learned; None for a quarter. event: the event whose time is the value of the metric, such as
    "reaches 3.28 val_loss"; it has not happened in a run whose value is not finite.
    """

    name: Name
    goal: Goal | None = None
    label: str = ""
    compare: Literal["difference", "ratio"] = "difference"
    margin: Margin | None = None
    quantity: Annotated[Quantity | None, IF_ANY] = None
    learned: Annotated[Number | None, IF_ANY] = None
    event: Annotated[str | None, IF_ANY] = None

    def check(self) -> None:
        if self.margin and self.compare == "ratio" and not 1 < self.margin.size <= 2:
            raise ConfigError(
                f"a margin of ratios lies above 1 and is at most 2, a change by the baseline's own value; "
                f"got {self.margin.size!r}",
                "margin.size",
            )
        if self.learned is not None and not 0 < self.learned < 1:
            raise ConfigError(f"a share lies above 0 and below 1; got {self.learned!r}", "learned")

    @property
    def title(self) -> str:
        """The metric's label, or its name where it has none."""
        return self.label or self.name


@dataclass(frozen=True)
class Contrast(Checked):
    """A difference that the report tests: ``arm`` minus ``against``, by their names."""

    name: Name
    arm: Name
    against: Name


@dataclass(frozen=True)
class PlannedRun:
    """One seed of an arm; ``key`` is the name of the folder that holds its record, and ``sources`` are the keys of the
    runs that it starts from itself."""

    seed: int
    key: str
    sources: Annotated[tuple[str, ...], IF_ANY] = ()


@dataclass(frozen=True)
class PlannedStage:
    """A run that others start from. place: the arm that it was first planned for, and the field of its config there.
    sources: the keys of the runs that it starts from itself."""

    name: str
    place: str
    seed: int
    key: str
    sources: Annotated[tuple[str, ...], IF_ANY] = ()


@dataclass(frozen=True)
class PlannedArm:
    """An arm of a plan: its level of every factor, its runs, and its own ``references`` where arms differ in them."""

    name: str
    levels: Mapping[str, Label] = field(default_factory=dict)
    runs: tuple[PlannedRun, ...] = ()
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class RetentionRuns:
    """The runs that measure retention before and after the run of an arm with this seed."""

    seed: int
    before: PlannedRun
    after: PlannedRun


@dataclass(frozen=True)
class PlannedRetention:
    """A measurement of retention: a score of the networks before and after the runs of each arm.

    limit: the most that ``metric`` may get worse; an arm beyond it gets no verdict. arms: the measuring runs, by arm,
    without arms that start from no weights.
    """

    name: str
    metric: Metric
    limit: Annotated[Margin | None, IF_ANY] = None
    arms: Mapping[str, tuple[RetentionRuns, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRates:
    """The learning rates at which all arms are measured once more, as ``factors`` of the rate that each arm has, with
    the first ``seeds`` seeds."""

    factors: tuple[Number, ...]
    seeds: int


@dataclass(frozen=True)
class Matched:
    """The ``target`` of an arm for the matched budget, and the amount that its plan ``reached``."""

    target: Number
    reached: Number


@dataclass(frozen=True)
class MatchedBudget:
    """The budget that is held equal between arms, and the ``free`` field that was solved for, if any. chain: whether
    it is that of all stages of a run together, and not of the last one alone."""

    on: str
    free: str | None = None
    tolerance: Number = 0.01
    per_arm: Mapping[str, Matched] = field(default_factory=dict)
    chain: Annotated[bool, IF_ANY] = False


@dataclass(frozen=True)
class TunedArm:
    """The result of one arm's search: the best ``values``, None where no trial has finished, of the run ``key``."""

    values: Mapping[str, Any] | None = None
    value: Number | None = None
    key: Annotated[str | None, LEFT_OUT] = None
    trials: int = 0
    pruned: int = 0
    failed: int = 0
    tokens: int = 0
    space: Annotated[Mapping[str, Any], LEFT_OUT] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuning:
    """The hyperparameter search: its budget, equal for every arm, its splits, and the result of each arm."""

    budget: Mapping[str, int] = field(default_factory=dict)
    metric: Annotated[str, LEFT_OUT] = ""
    selected_on: str = ""
    reported_on: str = ""
    arms: Mapping[str, TunedArm] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedCell:
    """A number that the source reports, and the arm or the levels that it belongs to."""

    arm: str | Mapping[str, Label]
    value: Number
    note: str = ""


@dataclass(frozen=True)
class Protocol:
    """How the source's numbers were measured."""

    text: str


Claim = Annotated[
    str,
    BeforeValidator(lambda value: value.get("text") if isinstance(value, dict) else value),
    PlainSerializer(lambda text: {"text": text}, when_used="json"),
]
"""A statement of the source beyond its numbers: a string in ``plan.json``, below ``text`` in ``results.jsonl``."""


@dataclass(frozen=True)
class PublishedNumbers:
    """The metric, protocol, numbers and claims that the source reports, by the arms of the plan.

    ``margin`` is that of the study's metric in units of the source's, where these differ. ``remarks`` explain results
    that are not those of the source, by the name of a contrast or, without contrasts, of an arm. ``goal`` is that of
    the source's metric, None where it is not known; plans from before they held it have the goal of the metric's name.
    """

    protocol: Annotated[Protocol, BeforeValidator(lambda value: {"text": value} if isinstance(value, str) else value)]
    metric: str
    cells: tuple[PublishedCell, ...] = ()
    claims: tuple[Claim, ...] = ()
    margin: Number | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    goal: Goal | None = None

    def __post_init__(self) -> None:
        if self.goal is None:
            object.__setattr__(self, "goal", published_goal(self.metric, former=True))


@dataclass(frozen=True)
class LookPlan:
    """The looks of a study, each by the number of seeds that an arm has at it at most, ascending.

    planned: those stated before the first one. taken: those whose results have been reported; one that is not among the
    planned ones was added by hand. pilot: the origin of the seeds before the first one: a pilot, or an earlier plan.
    """

    planned: tuple[int, ...]
    taken: tuple[int, ...] = ()
    pilot: Annotated[str, IF_ANY] = ""


@dataclass(frozen=True)
class LeftOut:
    """An arm that this scale does not run, and why."""

    arm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one study. Without ``contrasts`` and ``effects`` every arm is compared with the baseline.

    effects: the factors of a product whose main effects are compared; None for all of them and for interactions.
    answer: the comparisons that answer the question, by the names of contrasts or, without any, of arms that are
    compared with the baseline, or of factors; None where the study names none.
    references: from the value of who knows nothing of the data to the best possible one; empty where it is not known,
    and where arms have their own.
    looks: None where all seeds are judged at once.
    reach: how many symbols back the arm sees that sees least; None where arms do not differ in windows or memories.
    also: further metrics of the records, which reports show with their intervals and which judge nothing.
    stages: the runs that those of arms start from, each after those that it starts from itself.
    retention: the scores that are measured before and after the runs of each arm.
    rates: other learning rates at which the arms are measured.
    unpaired: whether the seeds of arms have nothing in common, so that arms are compared as independent samples.
    """

    version: int = VERSION
    study: str
    scale: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    question: str
    source: Source | None = None
    metric: Metric
    also: Annotated[tuple[Metric, ...], IF_ANY] = ()
    design: str = ""
    factors: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)
    baseline: str
    match: MatchedBudget | None = None
    arms: tuple[PlannedArm, ...]
    stages: Annotated[tuple[PlannedStage, ...], IF_ANY] = ()
    retention: Annotated[tuple[PlannedRetention, ...], IF_ANY] = ()
    rates: Annotated[PlannedRates | None, IF_ANY] = None
    looks: LookPlan | None = None
    unpaired: Annotated[bool, IF_ANY] = False
    contrasts: tuple[Contrast, ...] | None = None
    effects: tuple[str, ...] | None = None
    answer: tuple[str, ...] | None = None
    published: PublishedNumbers | None = None
    references: tuple[Reference, ...] = ()
    reach: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    protocol: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    tuning: Tuning | None = None

    @property
    def folder(self) -> str:
        """The name of the plan's folder below ``runs/studies``."""
        return folder_name(self.study, self.scale, self.changes)

    @property
    def seeds(self) -> int:
        """The number of seeds of the arm that has the most."""
        return max(len(arm.runs) for arm in self.arms)

    @property
    def goal(self) -> Goal:
        """The goal of its metric, which ``check`` requires."""
        assert self.metric.goal is not None
        return self.metric.goal

    @cached_property
    def labels(self) -> ArmLabels:
        """How its arms are named where they are shown."""
        return label_arms(self.arms, self.design, self.baseline)

    def by_key(self) -> dict[str, PlannedRun]:
        """Returns the planned runs by key, in order; a run that several arms share occurs once."""
        return {planned.key: planned for arm in self.arms for planned in arm.runs}

    def retention_runs(self) -> dict[str, PlannedRun]:
        """Returns the runs that measure retention, by key; a run that several arms share occurs once."""
        pairs = [pair for one in self.retention for arm in one.arms.values() for pair in arm]
        return {run.key: run for pair in pairs for run in (pair.before, pair.after)}

    def all_keys(self) -> list[str]:
        """Returns the keys of the runs of arms, of stages, and of the runs that measure retention, each once."""
        return [*dict.fromkeys([*self.by_key(), *(stage.key for stage in self.stages), *self.retention_runs()])]

    def first_stages(self) -> dict[str, str]:
        """Returns the key of the first run of each stage, by the name of the stage."""
        return {stage.name: stage.key for stage in reversed(self.stages)}

    def arms_after(self, stage: str) -> tuple[str, ...]:
        """Returns the names of the arms whose runs start from a stage, directly or through others."""
        chains = {arm.name: self.chain(key for run in arm.runs for key in run.sources) for arm in self.arms}
        return tuple(arm for arm, stages in chains.items() if any(one.name == stage for one in stages))

    def chain(self, sources: Iterable[str]) -> tuple[PlannedStage, ...]:
        """Returns the stages that have to be done before a run, each once, in the order in which they can be done.

        sources: the keys of those that it starts from itself."""
        stages, needed, pending = {stage.key: stage for stage in self.stages}, set[str](), [*sources]
        while pending:
            key = pending.pop()
            if key in stages and key not in needed:
                needed.add(key)
                pending += stages[key].sources
        return tuple(stage for stage in self.stages if stage.key in needed)

    @property
    def omissions(self) -> dict[str, str]:
        """The omissions of this scale, with the reasons: levels whose arms are all left out for one reason, or arms."""
        reasons = {entry.arm: entry.reason for entry in self.left_out}
        names = [*(arm.name for arm in self.arms), *reasons]

        def is_left_out(level: str, reason: str) -> bool:
            return all(reasons.get(name) == reason for name in names if level in name.split())

        return {
            next((level for level in arm.split() if is_left_out(level, reason)), arm): reason
            for arm, reason in reasons.items()
        }

    @property
    def references_by_data(self) -> dict[str, tuple[Reference, ...]]:
        """The references of each of the data that arms read: by the level of the factor that changes the data, by the
        arm where there is no such factor, or by an empty name where all arms read one data set."""
        if self.references:
            return {"": self.references}
        arms = [arm for arm in self.arms if arm.references]
        for factor in self.factors:
            levels = {arm.levels.get(factor, ""): arm.references for arm in arms}
            if len(levels) > 1 and all(levels[arm.levels.get(factor, "")] == arm.references for arm in arms):
                return levels
        return {arm.name: arm.references for arm in arms}

    def check(self) -> None:
        """Raises ConfigError for a name that cannot be that of a file, for an arm that does not exist, and for a metric
        without a goal."""
        for place, metric in (("metric", self.metric), *((f"also.{n}", one) for n, one in enumerate(self.also))):
            if metric.goal is None:
                raise ConfigError("states no goal; set it to minimize or maximize", f"{place}.goal")
        require_name(self.study, "study")
        for key in self.all_keys():
            require_name(key, "run")
        for looks in (self.looks.planned, self.looks.taken) if self.looks else ():
            if any(first >= second for first, second in pairwise((0, *looks))):
                raise ConfigError(f"looks {looks} do not rise; name each number of seeds once, in order", "looks")
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ConfigError("two arms have the same name; name every arm once")
        for contrast in self.contrasts or ():
            if contrast.arm == contrast.against:
                raise ConfigError(f"contrast {contrast.name!r} sets an arm against itself; name two arms")
        contrasted = [name for contrast in self.contrasts or () for name in (contrast.arm, contrast.against)]
        for name in (self.baseline, *contrasted):
            if name not in names:
                raise ConfigError(f"there is no arm {name!r}; {nearest(name, names)}")
        for retention in self.retention:
            if retention.metric.goal is None:
                raise ConfigError(
                    "states no goal; set it to minimize or maximize", f"retention.{retention.name}.metric"
                )


def plan_path(runs: Path, folder: str) -> Path:
    """Returns the path of a plan's ``plan.json``. folder: the name of its folder below ``runs/studies``."""
    return runs / "studies" / folder / PLAN


def write_plan(runs: Path, plan: Plan) -> None:
    """Writes ``plan.json`` to the plan's folder."""
    write_json(plan_path(runs, plan.folder), plan_to_plain(plan))


def plan_to_plain(plan: Plan) -> dict[str, Plain]:
    """Returns a plan as ``plan.json`` holds it, without tuning, choice of effects and answer where it has none."""
    optional = ("tuning", "effects", "answer")
    return {name: value for name, value in to_plain(plan).items() if name not in optional or value is not None}


def load_plan(path: Path) -> Plan:
    """Reads a plan. Raises ValueError or RecursionError, which ``first_fault`` names, where the file holds none, and
    OSError."""
    return parse_plan(json.loads(path.read_text(encoding="utf-8")))


def parse_plan(plain: Plain) -> Plan:
    """Builds a plan from plain data.

    Raises ValueError where the data are no plan, are of another version, or name an arm that does not exist.
    """
    if isinstance(plain, dict) and plain.get("version") != VERSION:
        raise ConfigError(f"made by version {plain.get('version')} of this format, not {VERSION}")
    plan = parse(Plan, plain)
    plan.check()
    return plan
