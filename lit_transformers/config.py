"""Config: frozen trees of plain values, strict about every name, type and range.

A part of the suite is described by a frozen keyword-only dataclass, defined above the class that it builds.
Writing ``class XLConfig(EncodingConfig, kind="xl")`` is enough: the dataclass decorator is applied here.

- Structure (unknown names, kinds, paths, overrides) is checked by this module.
- Leaves are checked by pydantic against the field's annotation, strictly: ``Annotated[int, Field(ge=1)]`` is a range.
- An abstract config, such as ``MixerConfig``, owns a table of kinds; ``kind`` tags the serialised form.

One path language serves the command line, specs, sweeps and reports: ``model.mixer.memory=128``.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import ConfigDict as PydanticConfig
from pydantic import Field, TypeAdapter, ValidationError

from lit_transformers.plain_yaml import read_yaml

__all__ = [
    "Added",
    "Config",
    "ConfigError",
    "Cycle",
    "Dilation",
    "Dropout",
    "Fraction",
    "Groups",
    "HeadWidth",
    "Heads",
    "Initial",
    "Length",
    "LowerLayers",
    "Memory",
    "MissingFileError",
    "NonNegative",
    "NonNegativeFloat",
    "Plain",
    "Positive",
    "PositiveFloat",
    "RandomSeed",
    "Rank",
    "Reach",
    "Role",
    "Rounds",
    "Seed",
    "Segments",
    "TableLength",
    "Width",
    "canonical_hash",
    "existing",
    "named_by",
    "nearest",
    "parse_assignments",
    "parts_below",
    "paths_within",
    "plain_leaves",
    "plain_of",
    "reason_of",
    "shortened",
    "table",
]

Plain = Any
"""None, bool, int, float, str, or lists and string-keyed dicts of these: the values of YAML and JSON."""

LARGEST = 2**63 - 1
"""The largest whole number of a field: the largest int64, as tensors hold."""
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Role:
    """The meaning of a field's value, for code that treats such fields alike and knows none by its name. It stands in
    the annotation, outside of everything else: ``Annotated[Positive | None, Length]``."""


class Length(Role):
    """A number of positions, or of things of which each position has at most one: a window, a step, keys, slots,
    buckets. The mechanism acts only in longer rows."""


class Reach(Length):
    """A number of positions, the latest ones, outside of which a layer shows a query nothing."""


class Dilation(Length):
    """The step between the positions of a window, by which a query sees that much further back."""


class Memory(Role):
    """The number of earlier positions that stay visible from segment to segment; 0 for none."""


class TableLength(Role):
    """The number of positions that a table has vectors for. No row may be longer."""


class Width(Role):
    """The channels of a hidden layer."""


class HeadWidth(Role):
    """The channels of a head."""


class Rank(Role):
    """The rank of a product of matrices; at most the smaller side of the map that the product changes."""


class Heads(Role):
    """A number of heads."""


class Cycle(Role):
    """A number n: the first of every n layers in a row differs from the others. A probe has at least one layer more."""


class Groups(Role):
    """A number of groups of layers; at most as many as there are layers."""


class LowerLayers(Role):
    """The number of the lowest layers that differ from those above them; 0 for none. Where there are layers above
    them, a probe has one too."""


class Segments(Role):
    """The number of segments of a row that are distinguished; 0 for none."""


class Rounds(Role):
    """How often a computation is repeated, however long its rows are."""


class RandomSeed(Role):
    """A seed of random numbers."""


class Dropout(Role):
    """The share of values that training drops."""


class Initial(Role):
    """A number that fresh weights are drawn by, and that trained ones do not depend on."""


class Rounding(Role):
    """A way to compute outputs, which changes them by rounding alone."""


class Added(Role):
    """A part that is put into a network, None for none. The weights of a network without it fit one that has it."""


C = TypeVar("C", bound="Config")

EXPECTED = {
    **dict.fromkeys(("dict_type", "mapping_type"), "a mapping is expected: {name: value, ...}"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list is expected: [value, ...]"),
}
"""The expected value, for faults that pydantic describes in terms of Python."""

LONGEST = 1000
"""The most characters of an error's message. The middle of a longer one, which quotes a large value, is left out."""
FEW_NAMES = 10
"""The most names that an error lists after a doubtful suggestion."""


class ConfigError(ValueError):
    """A config that cannot be made: ``path`` names the place, ``reason`` the fault and its remedy.

    advice: where in the reason names stand that are relative to ``path``'s beginning, as that of a field which is to be
    set is. They get the same prefixes as the path, so that they can be set as they stand.
    """

    def __init__(self, reason: str, path: str = "", advice: Sequence[int] = ()) -> None:
        self.reason, self.path, self.advice = reason, path, tuple(advice)
        super().__init__(shortened(f"{path}: {reason}" if path else reason))

    def under(self, head: str) -> ConfigError:
        """Returns the same error with ``head`` prepended to its path and to the names in its advice, as seen from one
        level further up the tree."""
        prefix, reason = f"{head}.", self.reason
        advice = [start + number * len(prefix) for number, start in enumerate(self.advice)]
        for start in advice:
            reason = f"{reason[:start]}{prefix}{reason[start:]}"
        return type(self)(reason, f"{prefix}{self.path}" if self.path else head, advice)

    def within(self, config: Config) -> ConfigError:
        """Returns the same error with the full paths of a whole config in place of those of the part that raised it,
        in its path and in its advice; a name that is not to be found stays as it is."""
        paths = list(_paths(config))
        path = _full_path(self.path, paths) or self.path
        reason = self.reason
        for start, name in reversed([*_advised(reason)]):
            full = _nearby(name, path, paths)
            if full:
                reason = f"{reason[:start]}{full}{reason[start + len(name) :]}"
        return type(self)(reason, path)


class MissingFileError(ConfigError):
    """A config that names a file which does not exist, and which some command could make."""


def shortened(message: str) -> str:
    """Returns a message as one line, even if it quotes several, without the middle if it is longer than LONGEST."""
    line = " ".join(message.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of an error message about a wrong name: the nearest names, or all of them where none is near.
    Where the nearest are doubtful and all are few, it names both."""
    candidates = sorted(names)
    matches, listed = difflib.get_close_matches(name, candidates, n=3, cutoff=0.5), ", ".join(candidates)
    if not matches:
        return f"there are: {listed}" if candidates else "there are none"
    suggestion = f"did you mean {' or '.join(matches)}?"
    is_doubtful = not difflib.get_close_matches(name, matches, cutoff=0.7)
    return f"{suggestion} There are: {listed}" if is_doubtful and len(candidates) <= FEW_NAMES else suggestion


def existing(path: str, *variables: str) -> Path | None:
    """Returns a path below a folder that one of these environment variables names, the first one first, or as it is;
    None where there is none."""
    bases = [base for variable in variables if (base := os.environ.get(variable))]
    return next((place for base in (*bases, "") if (place := Path(base, path)).exists()), None)


def named_by(variable: str) -> str:
    """Returns the part of a message that gives the value of an environment variable, or says that it is not set."""
    base = os.environ.get(variable)
    return f"{variable} is {base}" if base else f"{variable}, the folder that relative paths start from, is not set"


def canonical_hash(plain: Plain, length: int = 16) -> str:
    """Returns a hash of plain data that does not depend on the order of keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
class Config:
    """Base of every config. Immutable, comparable, hashable by content, and a plain tree on demand."""

    kind: ClassVar[str] = ""
    kinds: ClassVar[Mapping[str, type[Config]]] = {}
    implied: ClassVar[str] = ""
    space: ClassVar[Mapping[str, Any]] = {}
    """The intervals or choices that a search may try, by field: see ``lit_transformers.space``."""
    former: ClassVar[Mapping[str, str]] = {}
    """Fields by the names that they had before, which plain data and paths may still use."""
    short_forms: ClassVar[Sequence[Plain]] = ()
    """JSON schemas of the plain data that ``spelled_out`` takes besides."""
    program: ClassVar[Sequence[str]] = ()
    """The fields that decide which program is executed. Nothing but the user's own code and command line sets them."""
    absent: ClassVar[Mapping[str, str]] = {}
    """Names that are no fields here, though others have such a field, and why not."""

    def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind = kind
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)

    def __new__(cls, *args: Any, **values: Any) -> Self:
        if args:
            raise ConfigError(f"{cls.__name__} takes its fields by name")
        names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                raise cls.unknown_field(name)
        required = [f.name for f in dataclasses.fields(cls) if _is_required(f)]  # type: ignore[arg-type]
        for name in required:
            if name not in values:
                raise ConfigError(f"{cls.__name__} needs a value for {name!r}", name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            object.__setattr__(self, name, _parse(getattr(self, name), hint, name, _default_kind(type(self), name)))
        for conflict in self.conflicts():
            fields = field_types(type(self))
            raise ConfigError(
                conflict, advice=[start for start, name in _advised(conflict) if name.partition(".")[0] in fields]
            )

    def conflicts(self) -> Iterator[str]:
        """Hook: yields a sentence for each impossible combination of fields. Yields nothing by default."""
        yield from ()

    @classmethod
    def spelled_out(cls, plain: Plain) -> Plain:
        """Hook: returns the mapping that shorter plain data stand for, such as a path. By default these data."""
        return plain

    @classmethod
    def unknown_field(cls, name: str) -> ConfigError:
        """Returns the error for a name that is no field, with the way out."""
        way_out = cls.absent.get(name) or nearest(name, field_types(cls))
        if name in cls.former:
            way_out = f"it is called {cls.former[name]}"
        return ConfigError(f"{cls.__name__} has no field {name!r}; {way_out}", name)

    def to_dict(self) -> dict[str, Plain]:
        """Returns the config as plain data: lists for tuples, ``kind`` first where a field could hold several kinds."""
        tag = {"kind": self.kind} if self.kind else {}
        return tag | {f.name: plain_of(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120)

    @classmethod
    def from_dict(cls, plain: Plain) -> Self:
        """Reads the plain data of ``to_dict``. A bare string names a kind with its defaults; a mapping without a kind
        is of the kind of the field's default, or of the part that it replaces.

        Raises ConfigError: unknown kind or field, wrong type, value out of range, impossible combination.
        """
        plain = cls.spelled_out(plain)
        if isinstance(plain, str) and (cls.kinds or plain == cls.kind):
            plain = {"kind": plain}
        if not isinstance(plain, Mapping):
            raise ConfigError(f"{cls.__name__} is made from a mapping, not from {plain!r}")
        fields = dict(plain)
        config_type: type[Config] = cls
        if cls.kinds:
            if "kind" not in fields and not cls.implied:
                raise ConfigError(f"needs a kind; {nearest('', cls.kinds)}", "kind")
            kind = fields.pop("kind", cls.implied)
            if not isinstance(kind, str) or kind not in cls.kinds:
                raise ConfigError(f"no kind {kind!r}; {nearest(str(kind), cls.kinds)}", "kind")
            config_type = cls.kinds[kind]
        elif cls.kind and fields.pop("kind", cls.kind) != cls.kind:
            raise ConfigError(f"{cls.__name__} is of kind {cls.kind!r}", "kind")
        for name in fields:
            if not isinstance(name, str):
                raise ConfigError(f"a field's name is a string, not {name!r}")
        return cast("Self", config_type(**{config_type.former.get(name, name): fields[name] for name in fields}))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Reads a YAML file. Raises ConfigError for a file that is missing, damaged or wrong."""
        try:
            plain = read_yaml(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot be read as YAML: {error}", str(path)) from None
        if not isinstance(plain, Mapping) and not (isinstance(plain, str) and cls.kinds):
            content = "is empty" if plain is None else f"holds {plain!r}"
            names = ", ".join(f"{field.name}: ..." for field in dataclasses.fields(cls))  # type: ignore[arg-type]
            raise ConfigError(f"{content}, and not the fields of a {cls.__name__} ({names})", str(path))
        return cls.from_dict(plain)

    def override(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with the values at dotted paths replaced; each level is checked once, after all its changes.

        A value is plain data or a Config. A path that does not exist is an error that names the nearest one.
        """
        replacements: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        hints = field_types(type(self))
        for path, value in values.items():
            head, dot, rest = path.partition(".")
            head = self.former.get(head, head)
            if head == "kind":
                raise ConfigError(f"the kind of a part is set as the part itself, without .kind: to {value}", head)
            if head not in hints:
                raise self.unknown_field(head)
            if dot:
                nested.setdefault(head, {})[rest] = value
            else:
                replacements[head] = _parse(value, hints[head], head, self._kind_at(head))
        for head, changes in nested.items():
            child = replacements.get(head, getattr(self, head))
            if isinstance(child, Config):
                try:
                    replacements[head] = child.override(changes)
                except ConfigError as error:
                    raise error.under(head) from None
            elif isinstance(child, Mapping):
                replacements[head] = _parse(_with_changes(child, changes, head), hints[head], head)
            else:
                first_name = next(iter(changes))
                current = f"it is {'none' if child is None else repr(child)}"
                reason = f"there is nothing below {head!r} to set: {current}; set "
                raise ConfigError(f"{reason}{head} first", f"{head}.{first_name}", advice=[len(reason)])
        return dataclasses.replace(self, **replacements)  # type: ignore[type-var]

    def _kind_at(self, name: str) -> str:
        """Returns the kind of a part as it is now or, where there is none, by default."""
        part = getattr(self, name)
        return part.kind if isinstance(part, Config) else _default_kind(type(self), name)

    def get(self, path: str) -> Any:
        """Returns the value at a dotted path. Raises ConfigError where there is none."""
        value: Any = self
        for depth, name in enumerate(path.split(".")):
            names = (
                field_types(type(value)) if isinstance(value, Config) else value if isinstance(value, Mapping) else {}
            )
            if name not in names:
                missing_path = ".".join(path.split(".")[: depth + 1])
                raise ConfigError(f"there is no such path; {nearest(name, names)}", missing_path)
            value = getattr(value, name) if isinstance(value, Config) else value[name]
        return value

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yields every dotted path that holds no further Config, with its value; a kind is a leaf too."""
        if self.kind:
            yield f"{prefix}kind", self.kind
        for name in field_types(type(self)):
            value = getattr(self, name)
            for path, part in (parts := parts_below(name, value)):
                yield from part.leaves(f"{prefix}{path}.")
            if not parts:
                yield f"{prefix}{name}", value

    def leaves_with(self, role: type[Role], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yields the dotted path and the value of every field with a role, or one that is a case of it, in the order of
        ``leaves``; such a value may be a config."""
        for name, hint in field_types(type(self)).items():
            value = getattr(self, name)
            if any(issubclass(mark, role) for mark in roles(hint)):
                yield f"{prefix}{name}", value
                continue
            for path, part in parts_below(name, value):
                yield from part.leaves_with(role, f"{prefix}{path}.")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(canonical_hash(self.to_dict()))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{name: getattr(self, name) for name in field_types(type(self))}), ()


def parts_below(name: str, value: Any) -> list[tuple[str, Config]]:
    """Returns the configs that a field holds, itself or by names, with their paths below the config of the field."""
    if isinstance(value, Config):
        return [(name, value)]
    if isinstance(value, Mapping) and all(isinstance(part, Config) for part in value.values()):
        return [(f"{name}.{key}", part) for key, part in value.items()]
    return []


def _with_changes(parts: Mapping[str, Any], changes: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns a mapping with new values by name, or at paths below the configs that it holds."""
    changed, nested = dict(parts), dict[str, dict[str, Any]]()
    for name, value in changes.items():
        head, dot, rest = name.partition(".")
        if dot and isinstance(parts.get(head), Config):
            nested.setdefault(head, {})[rest] = value
        else:
            changed[name] = value
    for head, values in nested.items():
        try:
            changed[head] = parts[head].override(values)
        except ConfigError as error:
            raise error.under(f"{path}.{head}") from None
    return changed


def table(abstract: type[C], *concrete: type[C], implied: str = "") -> dict[str, type[C]]:
    """Registers the kinds of an abstract config, which a file or a command line may name, and returns their table.

    implied: the kind of a mapping that names none, for files from before there was a choice.
    """
    kinds: dict[str, type[C]] = {}
    for config in concrete:
        register(kinds, config)
    abstract.kinds, abstract.implied = kinds, implied
    return kinds


def register(kinds: dict[str, type[C]], config: type[C]) -> None:
    """Adds a kind to a table, which may be defined outside of this library."""
    if not config.kind or config.kind in kinds:
        raise TypeError(f"the kind of {config.__name__} needs a separate name")
    kinds[config.kind] = config
    config.kinds = {}  # a concrete config is no abstract one, though it inherits from it


def parse_assignments(assignments: Iterable[str]) -> dict[str, Plain]:
    """Reads ``path=value`` as typed on a command line; the value is YAML, so ``1e-3`` style floats are floats."""
    values: dict[str, Plain] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"write path=value, not {assignment!r}")
        try:
            value = read_yaml(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is not a YAML value: {error}", path) from None
        if isinstance(value, str) and text.strip() == value:
            value = _number(value)
        values[path.strip()] = value
    return values


def plain_leaves(plain: Mapping[str, Plain], head: str = "") -> Iterator[tuple[str, Plain]]:
    """Yields every value of a config's plain tree with its dotted path; an empty mapping is a value."""
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from plain_leaves(value, f"{head}{name}.")
        else:
            yield f"{head}{name}", value


def _number(text: str) -> str | float:
    """Returns a number where the text is one: YAML 1.1 reads 1e-3 as a string."""
    try:
        return float(text) if any(c.isdigit() for c in text) else text
    except ValueError:
        return text


def field_types(config: type[Config]) -> dict[str, Any]:
    """Returns the resolved annotations of a config's fields, in order."""
    return _field_types(config)  # type: ignore[arg-type]


def roles(hint: Any) -> list[type[Role]]:
    """Returns the roles in a field's annotation."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [mark for mark in marks if isinstance(mark, type) and issubclass(mark, Role)]


def without_roles(hint: Any) -> Any:
    """Returns an annotation without the roles around it."""
    return get_args(hint)[0] if roles(hint) else hint


@cache
def _field_types(config: type[Config]) -> dict[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(config)}  # type: ignore[arg-type]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=PydanticConfig(strict=True, arbitrary_types_allowed=True))


def _default_kind(config: type[Config], name: str) -> str:
    """Returns the kind of the default of a field, empty where it has none."""
    default = config.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return default.kind if isinstance(default, Config) else ""


def _parse(value: Any, hint: Any, path: str, kind: str = "") -> Any:
    """Checks a value against an annotation and returns it parsed; ``path`` is its place in errors. kind: that of a
    mapping which names none."""
    try:
        return _parse_config(value, hint, kind) if _config_types(hint) else _parse_leaf(value, hint)
    except ConfigError as error:
        raise error.under(path) from None


def _config_types(hint: Any) -> tuple[type[Config], ...]:
    """Returns the config classes that an annotation admits: itself, the members of a union, the items of a tuple, the
    values of a mapping."""
    hint = without_roles(hint)
    if isinstance(hint, type) and issubclass(hint, Config):
        return (hint,)
    if get_origin(hint) in (Union, UnionType, tuple, dict):
        return tuple(t for member in get_args(hint) for t in _config_types(member))
    return ()


def _parse_config(value: Any, hint: Any, kind: str) -> Any:
    hint = without_roles(hint)
    allowed = _config_types(hint)
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if value is None and NoneType in members:
        return None
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise ConfigError(f"wants a list, not {value!r}")
        return tuple(_parse(item, get_args(hint)[0], str(i)) for i, item in enumerate(value))
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ConfigError(f"wants a mapping from names, not {value!r}")
        return {name: _parse(item, get_args(hint)[1], name) for name, item in value.items()}
    if isinstance(value, allowed):
        return value
    if isinstance(value, Config):
        raise ConfigError(f"wants a {' or '.join(t.__name__ for t in allowed)}, not a {type(value).__name__}")
    value = allowed[0].spelled_out(value)
    if isinstance(value, Mapping) and "kind" not in value and kind in allowed[0].kinds:
        value = {"kind": kind, **value}
    return allowed[0].from_dict(value)


VERBS = "set|make|drop|lower|raise|correct|change|widen|shorten|leave|empty|move"
"""The verbs of which one, applied to a field, begins the advice in a reason."""
_ADVICE = re.compile(
    rf"(?:\b(?:{VERBS}) |(?:,? or |,? and |, )(?:(?:{VERBS}) )?)(?P<name>[a-z_]+(?:\.[a-z_]+)*)\b(?![(\w])"
)


def _advised(reason: str) -> Iterator[tuple[int, str]]:
    """Yields where names stand in the advice of a reason which may be those of fields, from its first verb on: "set
    depth: 2, or halting: null"."""
    first = re.search(rf"\b(?:{VERBS}) ", reason)
    if first:
        yield from ((match.start("name"), match["name"]) for match in _ADVICE.finditer(reason, first.start()))


@contextmanager
def paths_within(config: Config) -> Iterator[None]:
    """Gives the full paths of a whole config to errors that its parts raise inside, of which each knows itself alone:
    ``mixer.head_dim`` becomes ``model.mixer.head_dim``, which ``--set`` takes."""
    try:
        yield
    except ConfigError as error:
        raise error.within(config) from None


def _paths(config: Config, prefix: str = "") -> Iterator[str]:
    """Yields the path of every part and field of a config."""
    for name in field_types(type(config)):
        yield f"{prefix}{name}"
        for path, part in parts_below(name, getattr(config, name)):
            yield from _paths(part, f"{prefix}{path}.")


def _full_path(path: str, paths: Sequence[str]) -> str | None:
    """Returns the first path that is this one or ends with it or, where none does, with its names in their order."""
    if not path or path in paths or path.partition(".")[0] in paths:
        return path or None
    names = path.split(".")
    for full in paths:
        if full.endswith(f".{path}"):
            return full
    for full in paths:
        parts = iter(full.split("."))
        if full.rpartition(".")[2] == names[-1] and all(name in parts for name in names):
            return full
    return None


def _nearby(name: str, path: str, paths: Sequence[str]) -> str | None:
    """Returns the full path of a name in the advice on a path. The field is next to the path or in a part around it;
    with dots in its name, it may be anywhere."""
    while path:
        path = path.rpartition(".")[0]
        full = f"{path}.{name}" if path else name
        if full in paths:
            return full
    return _full_path(name, paths) if "." in name else None


def _parse_leaf(value: Any, hint: Any) -> Any:
    if isinstance(value, list) and get_origin(hint) is not list:
        value = tuple(value)  # YAML has no tuples
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if isinstance(part, int))
        raise ConfigError(reason_of(first), where) from None


def reason_of(fault: Mapping[str, Any]) -> str:
    """Returns the reason of the ConfigError for an entry of ``errors`` of a ValidationError: the expected value, and
    the value that is there instead."""
    expected = EXPECTED.get(fault["type"], fault["msg"][:1].lower() + fault["msg"][1:])
    return f"{expected}; got {fault['input']!r}"


def plain_of(value: Any) -> Plain:
    """Returns the value of a field as plain data."""
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_of(item) for item in value]
    return str(value) if isinstance(value, Path) else value
