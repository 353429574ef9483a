"""A study as it was planned, as ``plan.json`` tells it; and the base of all that reports read from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sweeps.study_folder import folder_name

Label = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else json.dumps(value))]
"""The name of a level, a number included, or of anything else that is printed and compared but never computed with."""

Number = Annotated[float, Field(strict=True)]
"""A number as JSON writes one: a word or a truth value in its place is damage."""


class Data(BaseModel):
    """Base of what is read from JSON: frozen, and deaf to fields that a later writer may add."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Source(Data):
    """Whose question the study asks."""

    title: str
    arxiv: str | None = None
    table: str | None = None


class Metric(Data):
    """What is compared. ``compare`` by ratio suits rates that span orders of magnitude, such as tokens per second."""

    name: str
    goal: Literal["minimize", "maximize"] = "minimize"
    label: str = ""
    compare: Literal["difference", "ratio"] = "difference"

    @property
    def title(self) -> str:
        return self.label or self.name


class PlannedRun(Data):
    """One seed of an arm, and the folder its record is in."""

    seed: int
    key: str


class Arm(Data):
    """One way to run the study, with its level of every factor."""

    name: str
    levels: Mapping[str, Label] = Field(default_factory=dict)
    runs: tuple[PlannedRun, ...] = ()


class Contrast(Data):
    """A difference that was asked for: ``arm`` minus ``against``."""

    name: str
    arm: str
    against: str


class Matched(Data):
    """What an arm should have spent of the matched quantity, and what it does."""

    target: Number
    reached: Number


class Match(Data):
    """What is held equal between arms, and by which field where one was solved for."""

    on: str
    free: str | None = None
    tolerance: float = 0.01
    per_arm: Mapping[str, Matched] = Field(default_factory=dict)


class TunedArm(Data):
    """What the search of one arm came to; no values where no trial has finished."""

    values: Mapping[str, Any] | None = None
    value: Number | None = None
    trials: int = 0
    pruned: int = 0
    failed: int = 0
    tokens: int = 0


class Tuning(Data):
    """How hyperparameters were searched for, the same for every arm, on which splits, and what was found."""

    budget: Mapping[str, int] = Field(default_factory=dict)
    selected_on: str = ""
    reported_on: str = ""
    arms: Mapping[str, TunedArm] = Field(default_factory=dict)


class PublishedCell(Data):
    """A number of the source, and the arm or the levels it is about."""

    arm: str | Mapping[str, Label]
    value: Number
    note: str = ""


class Protocol(Data):
    """How the source's numbers were measured."""

    text: str


class Claim(Data):
    """What the source says beyond its numbers."""

    text: str


def _texted(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class Published(Data):
    """What the source reports."""

    protocol: Annotated[Protocol, BeforeValidator(_texted)]
    metric: str
    cells: tuple[PublishedCell, ...] = ()
    claims: tuple[Annotated[Claim, BeforeValidator(_texted)], ...] = ()


class LeftOut(Data):
    """An arm that this scale does not run, and why."""

    arm: str
    reason: str


class Plan(Data):
    """One study as it was planned: its question, arms, runs and what the source has published."""

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
        """The name of its folder below ``runs/studies``."""
        return folder_name(self.study, self.scale, self.changes)

    def by_key(self) -> dict[str, PlannedRun]:
        """The planned runs by key, in order; one that several arms share stands once."""
        return {planned.key: planned for arm in self.arms for planned in arm.runs}
