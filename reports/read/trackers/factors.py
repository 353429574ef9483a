"""Which keys of the configs of runs tell arms apart, which one is the seed, and which say nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lit_transformers.config import nearest
from reports.read.study import ReportError
from reports.read.table_rows import Cell, text

__all__ = ["ConfigRoles", "config_roles", "level", "listed"]

_SEED = re.compile(r"(?:.*[._/ -])?(?:seed|[a-z]+_seed|random_state|seed_everything|rng)", re.IGNORECASE)
_NAME = re.compile(
    r"(?:.*[._/ -])?(?:name|run_?name|run_?id|id|uuid|hash|commit|git_?\w*|tags?|notes|host(?:name)?|user|pid|port|"
    r"job_?id|version|device|gpus?|rank)",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:.*[._/ -])?(?:\w*(?:dir|path|folder|file|root)|out|output|save|checkpoint|ckpt)", re.IGNORECASE)
_PATH_VALUE = re.compile(r"(?:/|~|\.{1,2}/|[A-Za-z]:\\|s3://|gs://|file:).*")
_TIME = re.compile(
    r"(?:.*[._/ -])?(?:timestamp|datetime|date|time|started?(?:_at|_time)?|created(?:_at)?|now)", re.IGNORECASE
)
_TIME_VALUE = re.compile(r"\d{4}[-_/]?\d\d[-_/]?\d\d(?:[T _-]\d\d.*)?")
_UNSET, _NONE = "unset", "none"
_LABELS = ("group", "folder", "experiment", "study", "project", "name")
"""The labels that tell arms apart where no key of the configs does, the first that differs between runs."""


class ConfigRoles(NamedTuple):
    """The keys of configs by their roles. arm: the keys that distinguish arms. seed: None where no key is one. notes: a
    sentence on each choice."""

    arm: tuple[str, ...]
    seed: str | None
    notes: tuple[str, ...]


def listed(names: Sequence[str], most: int = 6) -> str:
    """Returns names as text, the first of them where they are more than ``most``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def level(entry: Mapping[str, Cell] | Mapping[str, str], key: str) -> str:
    """Returns the level of a key as text, "unset" where the entry lacks it."""
    return (text(entry[key]) or _NONE) if key in entry else _UNSET


def config_roles(
    configs: Sequence[Mapping[str, Cell]],
    labels: Sequence[Mapping[str, str]],
    arm: Sequence[str] = (),
    seed: str | None = None,
) -> ConfigRoles:
    """Returns the roles of the keys of configs and labels, an entry for each run. ``arm`` and ``seed``, where given,
    are keys to take.

    Raises ReportError for a given key that no run has, and where several keys are seeds that differ from each other.
    """
    levels = _levels(configs)
    known = levels | {name: column for name, column in _levels(labels).items() if name not in levels}
    for key in (*arm, *([seed] if seed else ())):
        if key not in known:
            raise ReportError(f"no run has the config key {key!r}; {nearest(key, list(known))}")
    varied = {key: column for key, column in levels.items() if len(set(column)) > 1}
    chosen, notes = (seed, []) if seed else _seed_of(levels, varied)
    if arm:
        return ConfigRoles(
            tuple(arm), chosen, (f"seed: the config key {chosen}", *notes) if chosen and not seed else ()
        )
    candidates = {key: column for key, column in varied.items() if key != chosen and not _SEED.fullmatch(key)}
    silent = {key: reason for key, column in candidates.items() if (reason := _silent(key, column))}
    free = {key: column for key, column in candidates.items() if key not in silent}
    factors, changes = _independent(free, known.get(chosen) if chosen else None)
    if factors:
        source = "config key" + "s" * (len(factors) > 1)
    else:
        factors = [name for name in _LABELS if name in known and len(set(known[name])) > 1][:1]
        source = "label"
    notes = [
        *(
            [f"arm: the {source} {listed(factors)}, which differ{'s' * (len(factors) == 1)} between runs"]
            if factors
            else []
        ),
        *([f"seed: the config key {chosen}"] if chosen and not seed else []),
        *notes,
        *_ignored(len(levels) - len(varied), silent, changes),
    ]
    return ConfigRoles(tuple(factors), chosen, tuple(notes))


def _levels(entries: Sequence[Mapping[str, Cell]] | Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Returns the level of each key in all entries."""
    keys = dict.fromkeys(key for entry in entries for key in entry)
    return {key: tuple(level(entry, key) for entry in entries) for key in keys}


def _seed_of(levels: Mapping[str, Sequence[str]], varied: Mapping[str, Sequence[str]]) -> tuple[str | None, list[str]]:
    """Returns the key of seeds. Several that differ have to be one in all but name."""
    seeds = [key for key in varied if _SEED.fullmatch(key)] or [key for key in levels if _SEED.fullmatch(key)][:1]
    if not seeds:
        return None, []
    first, *others = sorted(seeds, key=lambda key: (key.casefold() != "seed", len(key)))
    if different := [key for key in others if not _are_one_to_one(levels[first], levels[key])]:
        raise ReportError(
            f"the keys {listed([first, *different])} are seeds that differ from each other; name the one of the runs: "
            "--seed KEY"
        )
    return first, [f"also seeds: {listed(others)}, which change with {first}"] if others else []


def _silent(key: str, column: Sequence[str]) -> str | None:
    """Returns why a key says nothing of an arm, None where it may."""
    values = [value for value in column if value not in (_UNSET, _NONE)]
    if _TIME.fullmatch(key) or all(_TIME_VALUE.fullmatch(value) for value in values):
        return "a time"
    if all(_PATH_VALUE.fullmatch(value) for value in values) or (
        _PATH.fullmatch(key) and any(not _is_number(value) for value in values)
    ):
        return "a path"
    if _NAME.fullmatch(key) and len(set(column)) == len(column):
        return "a name of the run"
    return None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _independent(columns: Mapping[str, Sequence[str]], seeds: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Returns the keys that are needed to tell all configs apart, in the order of the configs, and for each of the
    others the key that it changes with. Keys of more levels are taken first, and texts before numbers."""
    order = sorted(
        columns,
        key=lambda key: (-len(set(columns[key])), all(_is_number(value) for value in columns[key]), len(key)),
    )
    changes: dict[str, str] = {}
    kept: list[str] = []
    with_seed = [key for key in order if seeds is not None and _are_one_to_one(columns[key], seeds)]
    if len(with_seed) < len(order):
        changes = dict.fromkeys(with_seed, "the seed")
        order = [key for key in order if key not in changes]
    classes: list[tuple[str, ...]] = [()] * len(next(iter(columns.values()), ()))
    for key in order:
        finer = [(*one, level) for one, level in zip(classes, columns[key], strict=True)]
        if len(set(finer)) > len(set(classes)):
            classes, kept = finer, [*kept, key]
        else:
            changes[key] = next((one for one in kept if _determines(columns[one], columns[key])), listed(kept))
    return [key for key in columns if key in kept], changes


def _determines(one: Sequence[str], other: Sequence[str]) -> bool:
    return len(set(zip(one, other, strict=True))) == len(set(one))


def _are_one_to_one(one: Sequence[str], other: Sequence[str]) -> bool:
    return _determines(one, other) and _determines(other, one)


def _ignored(constant: int, silent: Mapping[str, str], changes: Mapping[str, str]) -> list[str]:
    named = [f"{key} ({reason})" for key, reason in silent.items()]
    named += [f"{key} (changes with {other})" for key, other in changes.items()]
    parts = [f"{constant} that {'is' if constant == 1 else 'are'} the same in all runs"] if constant else []
    parts += [listed(named)] if named else []
    return [f"ignored config keys: {'; '.join(parts)}"] if parts else []
