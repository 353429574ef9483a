"""The plan of a study, as ``plan.json`` holds it, and the base class of all data that reports read from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sweeps.study_folder import folder_name

Label = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else json.dumps(value))]
"""The name of a level, or anything else that is printed and compared but never computed with; numbers become text."""

Number = Annotated[float, Field(strict=True)]
"""A JSON number; a string or a boolean in its place is an error."""


class Data(BaseModel):
    """Base class of data that are read from JSON: frozen, and unknown fields of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Source(Data):
    """The publication whose question the study investigates."""

    title: str
    arxiv: str | None = None
    table: str | None = None


class Metric(Data):
    """The metric that is compared, with its direction.

    ``compare`` by ratio suits rates that span orders of magnitude, such as tokens per second.
    """

    name: str
    goal: Literal["minimize", "maximize"] = "minimize"
    label: str = ""
    compare: Literal["difference", "ratio"] = "difference"

    @property
    def title(self) -> str:
        return self.label or self.name


class PlannedRun(Data):
    """One seed of an arm; ``key`` is the name of the folder that holds its record."""

    seed: int
    key: str


class Arm(Data):
    """One arm of the study, with its level of every factor and its planned runs."""

    name: str
    levels: Mapping[str, Label] = Field(default_factory=dict)
    runs: tuple[PlannedRun, ...] = ()


class Contrast(Data):
    """A planned difference: ``arm`` minus ``against``."""

    name: str
    arm: str
    against: str


class Matched(Data):
    """The ``target`` of an arm for the matched quantity, and the amount that its plan ``reached``."""

    target: Number
    reached: Number


class Match(Data):
    """The quantity that is held equal between arms, and the ``free`` field that was solved for, if any."""

    on: str
    free: str | None = None
    tolerance: float = 0.01
    per_arm: Mapping[str, Matched] = Field(default_factory=dict)


class TunedArm(Data):
    """The result of one arm's hyperparameter search; ``values`` is None where no trial has finished."""

    values: Mapping[str, Any] | None = None
    value: Number | None = None
    trials: int = 0
    pruned: int = 0
    failed: int = 0
    tokens: int = 0


class Tuning(Data):
    """The hyperparameter search: its budget, equal for every arm, its splits, and the result of each arm."""

    budget: Mapping[str, int] = Field(default_factory=dict)
    selected_on: str = ""
    reported_on: str = ""
    arms: Mapping[str, TunedArm] = Field(default_factory=dict)


class PublishedCell(Data):
    """A number that the source reports, and the arm or the levels that it belongs to."""

    arm: str | Mapping[str, Label]
    value: Number
    note: str = ""


class Protocol(Data):
    """How the source's numbers were measured."""

    text: str


class SourceClaim(Data):
    """A statement of the source beyond its numbers."""

    text: str


def _as_text_field(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class Published(Data):
    """The metric, protocol, numbers and claims that the source reports."""

    protocol: Annotated[Protocol, BeforeValidator(_as_text_field)]
    metric: str
    cells: tuple[PublishedCell, ...] = ()
    claims: tuple[Annotated[SourceClaim, BeforeValidator(_as_text_field)], ...] = ()


class LeftOut(Data):
    """An arm that this scale does not run, and why."""

    arm: str
    reason: str


class Plan(Data):
    """The plan of one study: its question, arms, runs and the numbers that the source has published."""

    version: int
    study: str
    scale: str = ""
    changes: Mapping[str, Any] = Field(default_factory=dict)
    question: str
    source: Source | None = None
    metric: Metric
    design: str = ""
    factors: Mapping[str, tuple[Label, ...]] = Field(default_factory=dict)
    baseline: str
    match: Match | None = None
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...] | None = None
    published: Published | None = None
    protocol: str = ""
    tuning: Tuning | None = None
    left_out: tuple[LeftOut, ...] = ()
    commands: Mapping[str, str] = Field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the study's folder below ``runs/studies``."""
        return folder_name(self.study, self.scale, self.changes)

    def by_key(self) -> dict[str, PlannedRun]:
        """Returns the planned runs by key, in order; a run that several arms share occurs once."""
        return {planned.key: planned for arm in self.arms for planned in arm.runs}
