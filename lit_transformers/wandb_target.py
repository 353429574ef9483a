"""Where runs are sent at Weights & Biases: options win over the variables of wandb, and these over the defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from lit_transformers.config import ConfigError
from lit_transformers.records.measure import Goal

__all__ = ["NO_TARGET", "PROJECT", "TAG_LETTERS", "WandbMode", "WandbTarget", "wandb_target"]

WandbMode = Literal["disabled", "offline", "online"]
"""Whether runs are sent, and whether at once or by ``wandb sync`` later."""
PROJECT = "lit-transformers"
TAG_LETTERS = 64
"""The most letters of a tag there: a run with a longer one is refused."""
PROJECT_LETTERS = 128
NOT_IN_PROJECTS = "/\\#?%:"
"""The letters that no name of a project has there."""


class WandbTarget(NamedTuple):
    """Whether and where runs are sent. It is in no run's key.

    entity: a user or a team; None for the user's own default. tags: of every run, besides its study and its arm.
    artifacts: the file of the study, from which the lineage of the artifacts of runs begins; None to send no artifacts.
    system_metrics: whether the load of processors, memory and devices is sent. metric and goal: the metric that judges
    runs, and whether less or more of it is better; None where that is not known.
    """

    mode: WandbMode = "disabled"
    project: str = PROJECT
    entity: str | None = None
    tags: tuple[str, ...] = ()
    artifacts: Path | None = None
    system_metrics: bool = False
    metric: str | None = None
    goal: Goal | None = None


NO_TARGET = WandbTarget()
"""Nothing is sent."""


def wandb_target(
    mode: WandbMode, project: str | None = None, entity: str | None = None, tags: str | None = None,
    artifacts: Path | None = None, system_metrics: bool = False,
) -> WandbTarget:  # fmt: skip
    """Returns the target of runs. An argument that is None is read from WANDB_PROJECT, WANDB_ENTITY or WANDB_TAGS.

    tags: separated by commas. Raises ConfigError for a name that W&B would refuse, and for options of runs that are not
    sent.
    """
    options: dict[str, object] = {"--project": project, "--entity": entity, "--tags": tags}
    options |= {"--artifacts": artifacts, "--system-metrics": system_metrics or None}
    if mode == "disabled":
        for option, value in options.items():
            if value is not None:
                raise ConfigError("is for runs that are sent; add --wandb offline or --wandb online", option)
        return NO_TARGET
    return WandbTarget(
        mode,
        _project_name(*_stated("--project", project)) or PROJECT,
        _stated("--entity", entity)[1] or None,
        _tag_names(*_stated("--tags", tags)),
        artifacts.resolve() if artifacts else None,
        system_metrics,
    )


def _stated(option: str, value: str | None) -> tuple[str, str]:
    """Returns the value of an option, or that of its variable, empty without both; and first which of them it is of."""
    if value is not None:
        return option, value
    variable = f"WANDB_{option.removeprefix('--').upper()}"
    return variable, os.environ.get(variable, "")


def _project_name(origin: str, name: str) -> str:
    if len(name) > PROJECT_LETTERS or any(letter in name for letter in NOT_IN_PROJECTS):
        raise ConfigError(
            f"a project has at most {PROJECT_LETTERS} letters, and none of {NOT_IN_PROJECTS}; {name!r} is none", origin
        )
    return name


def _tag_names(origin: str, text: str) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))
    for tag in tags:
        if len(tag) > TAG_LETTERS:
            raise ConfigError(f"a tag has at most {TAG_LETTERS} letters; {tag!r} has {len(tag)}", origin)
    return tags
