"""``python -m ablations config STUDY``: the whole config of a study's arm, with its docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from ablations import catalog
from ablations.options import Scale, Set
from lit_transformers.cli.allow_option import AllowedModules
from lit_transformers.cli.printed_config import Other, print_config, print_differences, read_target, with_values
from lit_transformers.config import Config, ConfigError, nearest, parse_assignments
from lit_transformers.records.labels import ArmLabels, label_arms

__all__ = ["baseline_of", "config"]


def config(
    target: Annotated[
        str, typer.Argument(metavar="STUDY|RUN|KIND", help="A study, a run's folder, a YAML file, or a kind.")
    ],
    scale: Scale = "demo",
    arm: Annotated[
        str | None, typer.Option("--arm", metavar="NAME", help="One of the study's arms.", show_default="the baseline")
    ] = None,
    other: Other = None,
    changes: Set = None,
    allowed: AllowedModules = None,
) -> None:
    """Print the whole config of an arm with every default, type, range and doc, as YAML that fit takes. --diff OTHER: a
    table of the paths in which another arm of the study, another study, or a run differs."""
    path, first = _config_of(target, scale, arm, changes)
    if other is None:
        name = f"{target}, scale {scale}, {arm or 'the baseline'}" if _is_study(target) else target
        print_config(first, path, name)
        return
    if _is_study(target) and _arms_of(target, scale)[0].calls(other):
        second = _config_of(target, scale, other, changes)[1]
    else:
        second = _config_of(other, scale, None, changes)[1]
    print_differences((other, with_values(second, {})), (arm or target, with_values(first, {})))


def _is_study(target: str) -> bool:
    return target.endswith(".py") or target in catalog.all_names()


def baseline_of(target: str, others: Iterable[str]) -> Config:
    """Returns the config of a study's baseline at the scale demo. Raises ConfigError where there is no study of this
    name, which names those that are nearest among studies and others."""
    if not _is_study(target):
        suggestion = nearest(target, (*catalog.all_names(), *others))
        raise ConfigError(f"no run, no kind and no study of this name; {suggestion}", target)
    labels, configs = _arms_of(target, "demo")
    return configs[labels.baseline]


def _config_of(
    target: str, scale: str, arm: str | None, changes: list[str] | None
) -> tuple[str, Config | type[Config]]:
    """Returns the path and the config of a study's arm, before budgets are matched, or of another target."""
    values = parse_assignments(changes or [])
    path, config = read_target(target) if not _is_study(target) else ("", _arm_of(target, scale, arm))
    return path, with_values(config, values) if values else config


def _arm_of(target: str, scale: str, arm: str | None) -> Config:
    """Returns the config of a study's arm, by its name; that of the baseline without one."""
    labels, configs = _arms_of(target, scale)
    return configs[labels.find(arm) if arm else labels.baseline]


def _arms_of(target: str, scale: str) -> tuple[ArmLabels, Mapping[str, Config]]:
    """Returns the labels of a study's arms, and their configs by name."""
    study = catalog.load(catalog.find(target))
    resolved = study.resolve(scale)
    return label_arms(resolved.arms, study.design, resolved.arms[0].name), resolved.configs
