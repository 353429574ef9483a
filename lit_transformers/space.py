"""The search space of a config, declared in its class and checked against its fields.

A config class declares in ``space`` which of its fields a search may vary, and within which bounds::

    space: ClassVar[Space] = {"window": Interval(16, 256, log=True)}

``searched`` collects the declarations of a whole tree, by dotted path. Those below the mixer are the mixer's own; the
rest (learning rate, warm-up, dropout) is shared, so that every arm of a study searches the same. A study adds knobs by
its ``space``, and a command by ``--space``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lit_transformers.config import Config, ConfigError, Plain, field_types, parse_assignments, parts_below

__all__ = [
    "KNOB_FORM",
    "Choice",
    "Conditional",
    "Interval",
    "Knob",
    "Space",
    "exists",
    "is_own",
    "knobs_of",
    "parse_knobs",
    "require_valid",
    "searched",
]

KNOB_FORM = "PATH=LOW..HIGH, PATH=log:LOW..HIGH or PATH=A,B,C; then ' if PATH=VALUE' for a condition"
"""How knobs are typed."""

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


@dataclass(frozen=True)
class Conditional:
    """A knob that exists only where another path of the space has a value, such as a momentum where the optimizer is
    ``sgd``: ``Conditional(Interval(0.5, 0.99), "training.optimizer", "sgd")``."""

    knob: Interval | Choice
    path: str
    value: Plain

    def holds(self, value: Plain) -> bool:
        """Whether the knob holds the value, where it exists."""
        return self.knob.holds(value)

    def ends(self) -> tuple[Plain, ...]:
        """Returns the ends of the knob."""
        return self.knob.ends()


Knob = Interval | Choice | Conditional
Space = Mapping[str, Knob]


def exists(knob: Knob, values: Mapping[str, Plain]) -> bool:
    """Whether a knob exists, given the values of the knobs before it."""
    return not isinstance(knob, Conditional) or (knob.path in values and values[knob.path] == knob.value)


def parse_knobs(texts: Iterable[str]) -> dict[str, Knob]:
    """Reads knobs as they are typed (``KNOB_FORM``), by path. Raises ConfigError that shows the form."""
    return dict(_parse_knob(text) for text in texts)


def _parse_knob(text: str) -> tuple[str, Knob]:
    stated, _, condition = text.partition(" if ")
    path, equals, values = stated.partition("=")
    path, values = path.strip(), values.strip()
    try:
        if not path or not equals:
            raise ConfigError("it has no path")
        knob = _parse_interval(values) if ".." in values else Choice(tuple(map(_parse_value, values.split(","))))
        if not condition:
            return path, knob
        [(other, value)] = parse_assignments([condition]).items()
    except ConfigError as error:
        raise ConfigError(f"{text!r} is none: {error.reason}; write {KNOB_FORM}", "--space") from None
    return path, Conditional(knob, other, value)


def _parse_interval(text: str) -> Interval:
    low, _, high = text.removeprefix("log:").partition("..")
    ends = (_parse_value(low), _parse_value(high))
    for end, stated in zip(ends, (low, high), strict=True):
        if not isinstance(end, int | float) or isinstance(end, bool):
            raise ConfigError(f"{stated!r} is no number")
    return Interval(*ends, log=text.startswith("log:"))


def _parse_value(text: str) -> Plain:
    return parse_assignments([f"value={text.strip()}"])["value"]


def is_own(path: str) -> bool:
    """Whether a path belongs to the mixer alone; the others are searched by every arm."""
    return path.startswith(OWN)


def knobs_of(config: Config, search: Mapping[str, Plain]) -> dict[str, Knob]:
    """Returns the knobs that a config states itself, as plain data by path: {"low": 1e-4, "high": 0.1, "log": True} or
    {"values": [...]}. Raises ConfigError for any other value, and for a path without a value."""
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


def searched(
    config: Config, fixed: Iterable[str] = (), *, own: bool = False, added: Space | None = None
) -> dict[str, Knob]:
    """Returns the knobs of a run's config by path, except those that are ``fixed`` or lie below a fixed path.

    A field that holds None is not searched: a value would make another model. A warm-up ends within the first quarter
    of the steps. own: includes the mixer's knobs. added: knobs of a study or a command, which replace those of the same
    paths. Raises ConfigError for a knob that its config would refuse, and for an added one whose path is fixed or whose
    condition is no knob before it.
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
    for path, knob in (added or {}).items():
        if any(f"{path}.".startswith(f"{one}.") or one.startswith(f"{path}.") for one in fixed_paths):
            raise ConfigError("an arm or --set states its value, so that it cannot be searched", path)
        knobs.pop(path, None)
        if isinstance(knob, Conditional) and not (knob.path in knobs and knobs[knob.path].holds(knob.value)):
            raise ConfigError(f"exists if {knob.path}={knob.value}, which no knob before it can be", path)
        knobs[path] = knob
    for path in knobs:
        for value in knobs[path].ends():
            config.override(_conditions(knobs, path) | {path: value})
    return knobs


def _conditions(knobs: Space, path: str) -> dict[str, Plain]:
    """Returns the values of other paths at which a knob exists."""
    knob = knobs[path]
    return _conditions(knobs, knob.path) | {knob.path: knob.value} if isinstance(knob, Conditional) else {}


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
