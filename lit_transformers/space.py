"""What a search may change of a config, declared beside it and checked against its fields.

A config class says in ``space`` which of its fields are worth trying, and between which ends::

    space: ClassVar[Space] = {"window": Interval(16, 256, log=True)}

``searched`` gathers the declarations of a whole tree, by dotted path. What stands below the mixer is the mixer's own;
the rest (learning rate, warm-up, dropout) is shared, so that every arm of a study searches the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lit_transformers.config import Config, ConfigError, Plain, field_types

__all__ = ["Choice", "Interval", "Knob", "Space", "is_own", "require_valid", "searched"]

OWN = "model.mixer."
WARMUP = "training.schedule.warmup"
STEPS = "training.steps"


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, both among them; whole ones where both ends are. log: factors count alike.

    Raises ConfigError for ends that are no interval.
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
        """Whether it could have been drawn from here."""
        is_number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def ends(self) -> tuple[Plain, ...]:
        """The values that a field must admit for it to admit them all."""
        return (self.low, self.high)


@dataclass(frozen=True)
class Choice:
    """One of some plain values. Raises ConfigError for fewer than two."""

    values: tuple[Plain, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ConfigError(f"a choice has two values or more, not {len(self.values)}")

    def holds(self, value: Plain) -> bool:
        """Whether it could have been drawn from here."""
        return any(type(value) is type(own) and value == own for own in self.values)

    def ends(self) -> tuple[Plain, ...]:
        """The values that a field must admit for it to admit them all."""
        return self.values


Knob = Interval | Choice
Space = Mapping[str, Knob]


def is_own(path: str) -> bool:
    """Whether a path belongs to the mixer alone; the others are searched by every arm."""
    return path.startswith(OWN)


def searched(config: Config, fixed: Iterable[str] = (), *, own: bool = False) -> dict[str, Knob]:
    """The knobs of a run's config by path, but for those that are ``fixed`` or lie below a fixed one.

    A field that holds None stays so: that is another model, not another value. A warm-up ends within the first quarter
    of the steps. own: with the mixer's. Raises ConfigError for a declaration that its config would refuse.
    """
    held = tuple(fixed)
    found = {
        path: knob
        for path, knob in _declared(config, "")
        if (own or not is_own(path))
        and config.get(path) is not None
        and not any(path == other or path.startswith(f"{other}.") for other in held)
    }
    if WARMUP in found:
        knob, latest = found[WARMUP], config.get(STEPS) // 4
        if isinstance(knob, Interval) and knob.low < latest < knob.high:
            found[WARMUP] = replace(knob, high=latest)
        elif isinstance(knob, Interval) and latest <= knob.low:
            del found[WARMUP]
    for path in found:
        for end in found[path].ends():
            config.override({path: end})
    return found


def require_valid(config: type[Config]) -> None:
    """Raises ConfigError where a class declares what is no field of it."""
    for name in config.space:
        if name.partition(".")[0] not in field_types(config):
            raise ConfigError(f"{config.__name__}.space names no field of it", name)


def _declared(config: Config, prefix: str) -> Iterator[tuple[str, Knob]]:
    require_valid(type(config))
    for name, knob in config.space.items():
        yield f"{prefix}{name}", knob
    for name in field_types(type(config)):
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from _declared(value, f"{prefix}{name}.")
