"""The search space of a config, declared in its class and checked against its fields.

A config class declares in ``space`` which of its fields a search may vary, and within which bounds::

    space: ClassVar[Space] = {"window": Interval(16, 256, log=True)}

``searched`` collects the declarations of a whole tree, by dotted path. Those below the mixer are the mixer's own; the
rest (learning rate, warm-up, dropout) is shared, so that every arm of a study searches the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lit_transformers.config import Config, ConfigError, Plain, field_types, parts_below

__all__ = ["Choice", "Interval", "Knob", "Space", "is_own", "knobs_of", "require_valid", "searched"]

OWN = "model.mixer."
WARMUP = "training.schedule.warmup"
STEPS = "training.steps"
PLAIN_KNOB = "a search is {low: ..., high: ..., log: false} or {values: [...]}"


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, both included; integers where both ends are. log: on a logarithmic scale.

    Raises ConfigError where the ends do not form an interval.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"an interval goes up, and {self.low} to {self.high} does not")
        if self.log and self.low <= 0:
            raise ConfigError(f"an interval of factors begins above 0, not at {self.low}")

    @property
    def whole(self) -> bool:
        """Whether its numbers are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: Plain) -> bool:
        """Whether the value lies in the interval and has its type."""
        is_number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def ends(self) -> tuple[Plain, ...]:
        """Returns the ends; a field that admits both admits all values between them."""
        return (self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """A choice among plain values. Raises ConfigError for fewer than two."""

    values: tuple[Plain, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ConfigError(f"a choice has two values or more, not {len(self.values)}")

    def holds(self, value: Plain) -> bool:
        """Whether the value is one of the choices, by value and by type."""
        return any(type(value) is type(choice) and value == choice for choice in self.values)

    def ends(self) -> tuple[Plain, ...]:
        """Returns the values that a field must admit: all choices."""
        return self.values


Knob = Interval | Choice
Space = Mapping[str, Knob]


def is_own(path: str) -> bool:
    """Whether a path belongs to the mixer alone; the others are searched by every arm."""
    return path.startswith(OWN)


def knobs_of(config: Config, search: Mapping[str, Plain]) -> dict[str, Knob]:
    """Returns the knobs that a config states itself, as plain data by path: {"low": 1e-4, "high": 0.1, "log": True} or
    {"values": [...]}. Raises ConfigError for what is neither, and for a path without a value."""
    for path in search:
        try:
            config.get(path)
        except ConfigError:
            reason = "is searched and has no value here; give it one, which is tried first"
            raise ConfigError(reason, f"search.{path}") from None
    return {path: _knob(plain, path) for path, plain in search.items()}


def _knob(plain: Plain, path: str) -> Knob:
    """Returns the interval or choice of plain data. Raises ConfigError where it is none."""
    try:
        return Choice(tuple(plain["values"])) if "values" in plain else Interval(**plain)
    except (TypeError, KeyError):
        raise ConfigError(f"{PLAIN_KNOB}; got {plain!r}", f"search.{path}") from None


def searched(config: Config, fixed: Iterable[str] = (), *, own: bool = False) -> dict[str, Knob]:
    """Returns the knobs of a run's config by path, except those that are ``fixed`` or lie below a fixed path.

    A field that holds None is not searched: a value would make another model. A warm-up ends within the first quarter
    of the steps. own: includes the mixer's knobs. Raises ConfigError for a declaration that its config would refuse.
    """
    fixed_paths = tuple(fixed)
    knobs = {
        path: knob
        for path, knob in _declared(config, "")
        if (own or not is_own(path))
        and config.get(path) is not None
        and not any(path == fixed_path or path.startswith(f"{fixed_path}.") for fixed_path in fixed_paths)
    }
    if WARMUP in knobs:
        knob, latest = knobs[WARMUP], config.get(STEPS) // 4
        if isinstance(knob, Interval) and knob.low < latest < knob.high:
            knobs[WARMUP] = replace(knob, high=latest)
        elif isinstance(knob, Interval) and latest <= knob.low:
            del knobs[WARMUP]
    for path in knobs:
        for value in knobs[path].ends():
            config.override({path: value})
    return knobs


def require_valid(config: type[Config]) -> None:
    """Raises ConfigError where a class declares a knob that is not one of its fields."""
    for name in config.space:
        if name.partition(".")[0] not in field_types(config):
            raise ConfigError(f"{config.__name__}.space names no field of it", name)


def _declared(config: Config, prefix: str) -> Iterator[tuple[str, Knob]]:
    require_valid(type(config))
    for name, knob in config.space.items():
        yield f"{prefix}{name}", knob
    for name in field_types(type(config)):
        for path, part in parts_below(name, getattr(config, name)):
            yield from _declared(part, f"{prefix}{path}.")
