"""Expands factors and a design into arms: the combinations of levels that are run, and the overrides of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, TypeVar

from lit_transformers.config import Config, ConfigError, nearest, plain_leaves

__all__ = [
    "Arm",
    "Design",
    "Factors",
    "Overrides",
    "configure",
    "list_arms",
    "on_device",
    "require_distinct",
    "require_no_seeds",
    "require_settable",
    "seed_overrides",
    "select",
]

Design = Literal["product", "one_factor", "leave_one_out", "explicit"]
Overrides = Mapping[str, Any]
Factors = Mapping[str, Mapping[str, Overrides]]

C = TypeVar("C", bound=Config)

SEEDS = ("seed", "data.seed")
"""The paths that the seed of a run sets."""


class Arm(NamedTuple):
    """One configuration of the study. ``levels`` names the level of every factor; explicit arms have none."""

    name: str
    levels: dict[str, str]
    overrides: dict[str, Any]


def list_arms(design: Design, factors: Factors, explicit: Mapping[str, Overrides]) -> list[Arm]:
    """Lists the arms in order, the baseline first.

    product: every combination. one_factor: the baseline, and each other level by itself. leave_one_out: all factors,
    and all but one. explicit: the arms as listed. A factor's first level is the baseline's. Raises ConfigError for a
    design without the factors or arms it needs, or two factors that set one path.
    """
    if design == "explicit":
        return _explicit(factors, explicit)
    if explicit:
        raise ConfigError(f'a {design} design has factors; arms are for design="explicit"', "arms")
    for name, levels in factors.items():
        _check_factor(name, levels, design)
    if not factors:
        raise ConfigError(f"a {design} design needs at least one factor", "factors")
    baseline = {name: next(iter(levels)) for name, levels in factors.items()}
    return _DESIGNS[design](factors, baseline)


def _explicit(factors: Factors, explicit: Mapping[str, Overrides]) -> list[Arm]:
    if factors:
        raise ConfigError("an explicit design has arms, no factors", "factors")
    if not explicit:
        raise ConfigError("an explicit design needs arms", "arms")
    for name in explicit:
        if not name.strip():
            raise ConfigError("an arm needs a name", "arms")
    if explicit[next(iter(explicit))]:
        raise ConfigError(
            "the first arm is the baseline and overrides nothing: write {}", f"arms.{next(iter(explicit))}"
        )
    return [Arm(name, {}, dict(overrides)) for name, overrides in explicit.items()]


def _check_factor(name: str, levels: Mapping[str, Overrides], design: Design) -> None:
    for word in (name, *levels):
        if not word or any(letter.isspace() or letter == "=" for letter in word):
            raise ConfigError(f"a name has no space and no '=' in it: {word!r}", f"factors.{name}")
    if len(levels) < 2:
        raise ConfigError("a factor needs two levels or more", f"factors.{name}")
    if design == "leave_one_out" and len(levels) > 2:
        raise ConfigError("a part that is left out has two levels: present or absent", f"factors.{name}")
    first = next(iter(levels))
    if levels[first]:
        raise ConfigError(
            "the first level is the baseline's and overrides nothing: write {}", f"factors.{name}.{first}"
        )
    for level, overrides in list(levels.items())[1:]:
        if not overrides:
            raise ConfigError("overrides nothing, as the first level does", f"factors.{name}.{level}")


def _product(factors: Factors, baseline: dict[str, str]) -> list[Arm]:
    level_tuples = product(*(levels for levels in factors.values()))
    return [_arm(factors, dict(zip(factors, combination, strict=True))) for combination in level_tuples]


def _one_factor(factors: Factors, baseline: dict[str, str]) -> list[Arm]:
    arms = [_arm(factors, baseline, "baseline")]
    for factor, levels in factors.items():
        others = [level for level in levels if level != baseline[factor]]
        arms += [_arm(factors, baseline | {factor: level}, f"{factor}={level}") for level in others]
    return arms


def _leave_one_out(factors: Factors, baseline: dict[str, str]) -> list[Arm]:
    arms = [_arm(factors, baseline, "all")]
    for factor, levels in factors.items():
        arms.append(_arm(factors, baseline | {factor: list(levels)[1]}, f"without {factor}"))
    return arms


_DESIGNS: dict[str, Callable[[Factors, dict[str, str]], list[Arm]]] = {
    "product": _product,
    "one_factor": _one_factor,
    "leave_one_out": _leave_one_out,
}


def _arm(factors: Factors, levels: dict[str, str], name: str = "") -> Arm:
    overrides: dict[str, Any] = {}
    for factor, level in levels.items():
        for path, value in factors[factor][level].items():
            if path in overrides:
                rivals = [other for other in levels if path in factors[other][levels[other]]]
                raise ConfigError(f"factors {' and '.join(rivals)} both set {path}", f"factors.{factor}.{level}")
            overrides[path] = value
    return Arm(name or " ".join(f"{factor}={level}" for factor, level in levels.items()), dict(levels), overrides)


def select(arms: Sequence[Arm], selector: str, place: str) -> list[Arm]:
    """Returns the arms that a selector names: an arm's name, or some of its levels, as in ``positions=shaw loss=half``.

    Raises ConfigError where it names none.
    """
    exact_matches = [arm for arm in arms if arm.name == selector]
    if exact_matches:
        return exact_matches
    requested_levels = selector.split()
    matches = [
        arm
        for arm in arms
        if requested_levels and set(requested_levels) <= {f"{factor}={level}" for factor, level in arm.levels.items()}
    ]
    if not matches:
        arm_names = [arm.name for arm in arms]
        raise ConfigError(f"no arm is called {selector!r}; {nearest(selector, arm_names)}", place)
    return matches


def configure(baseline: C, arm: Arm, factors: Factors) -> C:
    """Returns the arm's config. Raises ConfigError that names factor, level and path of an invalid override."""
    try:
        require_no_seeds(arm.overrides)
        return baseline.override(arm.overrides)
    except ConfigError as error:
        place = f"arms.{arm.name}"
        for factor, level in arm.levels.items():
            if _concerns_path(factors[factor][level], error.path):
                place = f"factors.{factor}.{level}"
        raise ConfigError(str(error), place) from None


def seed_overrides(config: Config, seed: int) -> dict[str, int]:
    """Returns the overrides of a seed: of the weights and of the order of the data, so that seeds vary both."""
    return {path: seed for path, _ in config.leaves() if path in SEEDS}


def on_device(config: C, device: str) -> C:
    """Returns the config with a device, which the runs that it starts from use too: one option names it for all of
    them."""
    return config.override({f"{prefix}training.device": device for prefix in _within(config, type(config))})


def _within(config: Config, kind: type[Config], prefix: str = "") -> Iterator[str]:
    """Yields, for each config of a class within a config, the prefix of the paths of its fields."""
    for name, value in vars(config).items():
        if isinstance(value, kind):
            yield f"{prefix}{name}."
        if isinstance(value, Config):
            yield from _within(value, kind, f"{prefix}{name}.")


def require_settable(changes: Overrides, baseline: Config, arms: Sequence[Arm]) -> None:
    """Raises ConfigError for changes of fields that a study plans itself, its seeds and the fields that its arms vary:
    such changes would hold for some runs, or for none.

    baseline: the config that is changed.
    """
    require_no_seeds(changes)
    changed, named = baseline.override(changes), dict(plain_leaves(changes))
    for arm in arms:
        for varied in arm.overrides:
            places = [path for path in named if path == varied or path.startswith(f"{varied}.")]
            if places or _value_at(changed, varied) != _value_at(baseline, varied):
                raise ConfigError(
                    f"cannot be set, for the arms of the study differ in it: {arm.name!r} keeps its own value; "
                    "write the values that are to be compared into the study",
                    (places or [varied])[0],
                )


def require_no_seeds(overrides: Overrides) -> None:
    """Raises ConfigError for overrides of a seed, which a study plans itself, or which follows that of the run."""
    for path in overrides:
        source, dot, rest = path.rpartition(".run.")
        if dot and rest in SEEDS:
            reason = f"follows the seed of the run that starts from it; set {source}.seed to a number that stays"
            raise ConfigError(reason, path)
    for path, _ in plain_leaves(overrides):
        if path in SEEDS:
            raise ConfigError(
                "cannot be set, for a study plans its seeds: give their number by --seeds N or seeds=N, and the first "
                "one by seeds=Looks(N, first_seed=...) in the study",
                path,
            )


def _value_at(config: Config, path: str) -> Any:
    """Returns the value at a path; None where there is no such path."""
    try:
        return config.get(path)
    except ConfigError:
        return None


def _concerns_path(overrides: Overrides, path: str) -> bool:
    """Whether an error at a path comes from one of these overrides: their path equals, contains or is inside it."""
    return any(
        path == overridden or overridden.startswith(f"{path}.") or path.startswith(f"{overridden}.")
        for overridden in overrides
    )


def require_distinct(arms: Sequence[Arm], configs: Mapping[str, Config]) -> None:
    """Raises ConfigError for two arms with equal configs: an override of one of them has no effect."""
    first_arms: dict[Config, Arm] = {}
    for second in arms:
        first = first_arms.setdefault(configs[second.name], second)
        if first is second:
            continue
        factors = [name for name in first.levels if first.levels[name] != second.levels[name]]
        does_nothing = f": {_differing_paths(first, second)} changes nothing there"
        place = f"factors.{factors[0]}.{second.levels[factors[0]]}" if len(factors) == 1 else "arms"
        raise ConfigError(f"arms {first.name!r} and {second.name!r} are the same run{does_nothing}", place)


def _differing_paths(first: Arm, second: Arm) -> str:
    """Returns the override paths in which two arms differ, joined by "and"."""
    paths = [
        path
        for path in {**first.overrides, **second.overrides}
        if first.overrides.get(path, ...) != second.overrides.get(path, ...)
    ]
    return " and ".join(paths) or "nothing"
