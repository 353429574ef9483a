"""Search spaces hold possible values: every path is a field, and every end is a value of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datamodules import DATA, SOURCES
from lit_transformers.config import Config, ConfigError
from lit_transformers.mixers import MIXERS
from lit_transformers.models import MODELS
from lit_transformers.runs import RunConfig
from lit_transformers.space import Choice, Conditional, Interval, parse_knobs, require_valid, searched
from lit_transformers.stacks import STACKS
from lit_transformers.training.config import OPTIMIZERS, SCHEDULES

KINDS = [
    config
    for table in (MIXERS, MODELS, STACKS, OPTIMIZERS, SCHEDULES, DATA, SOURCES)
    for config in table.values()
    if config.space
]


def ends(config: type[Config]) -> Iterator[tuple[str, object]]:
    for name, knob in config.space.items():
        yield from ((name, end) for end in knob.ends())


def test_there_are_spaces_to_look_at() -> None:
    assert {"window", "local", "linformer", "lsh", "adamw", "cosine"} <= {config.kind for config in KINDS}


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.__name__)
def test_a_declared_space_names_fields_and_values_that_they_take(config: type[Config]) -> None:
    require_valid(config)
    for name, end in ends(config):
        config.from_dict({name: end} if not config.kind else {"kind": config.kind, name: end})


@pytest.mark.parametrize("kind", sorted(kind for kind, config in MIXERS.items() if config.space))
def test_a_mixers_space_is_searched_only_where_it_is_asked_for(kind: str) -> None:
    run = RunConfig().override({"model.mixer": {"kind": kind}})
    shared = searched(run)
    assert shared.keys() == {"training.optimizer.learning_rate", "training.schedule.warmup", "model.dropout"}
    with_mixer = searched(run, own=True)
    assert with_mixer.keys() - shared.keys() == {
        f"model.mixer.{name}" for name in MIXERS[kind].space if run.get(f"model.mixer.{name}") is not None
    }


def test_an_interval_holds_numbers_of_its_own_kind() -> None:
    integers, floats = Interval(1, 8), Interval(0.0, 1.0)
    assert integers.holds(8) and not integers.holds(9) and not integers.holds(2.0) and not integers.holds(True)
    assert floats.holds(1) and floats.holds(0.5) and not floats.holds(1.1) and not floats.holds(None)
    assert Choice((1, None)).holds(None) and not Choice((1, 2)).holds(True)


@pytest.mark.parametrize("make", [lambda: Interval(2, 1), lambda: Interval(0.0, 1.0, log=True), lambda: Choice((1,))])
def test_what_is_no_space_is_refused_when_it_is_made(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


class Mistyped(Config):
    """Declares the space of a field that it lacks."""

    space = {"windw": Interval(1, 2)}  # noqa: RUF012

    window: int = 1


def test_a_mistyped_path_is_named() -> None:
    with pytest.raises(ConfigError, match=r"windw: Mistyped\.space names no field of it"):
        require_valid(Mistyped)


MOMENTUM = Conditional(Interval(0.5, 0.99), "training.optimizer", "sgd")


def test_knobs_are_typed_as_they_are_written() -> None:
    typed = [
        "model.depth=1..4",
        "model.dropout=0..0.3",
        "training.clip=log:1e-1..10.0",
        "training.optimizer=adamw, sgd",
    ]
    assert parse_knobs([*typed, "training.optimizer.momentum=0.5..0.99 if training.optimizer=sgd"]) == {
        "model.depth": Interval(1, 4),
        "model.dropout": Interval(0, 0.3),
        "training.clip": Interval(0.1, 10.0, log=True),
        "training.optimizer": Choice(("adamw", "sgd")),
        "training.optimizer.momentum": MOMENTUM,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model.depth", "it has no path"),
        ("model.depth=1..many", "'many' is no number"),
        ("model.depth=4", "a choice has two values or more"),
        ("model.depth=1..4 if deep", "write path=value"),
    ],
)
def test_what_is_no_knob_is_refused_and_the_form_is_shown(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--space: .* is none: {reason}.*; write PATH=LOW..HIGH, PATH=log:LOW"):
        parse_knobs([text])


def test_added_knobs_are_checked_like_declared_ones() -> None:
    run = RunConfig()
    rate = "training.optimizer.learning_rate"
    knobs = searched(run, added=parse_knobs(["training.optimizer=adamw,sgd"]) | {f"{rate[:-14]}.momentum": MOMENTUM})
    assert [*knobs][-2:] == ["training.optimizer", "training.optimizer.momentum"]
    assert searched(run, added={rate: Interval(1e-5, 1e-3, log=True)})[rate] == Interval(1e-5, 1e-3, log=True)
    for added, fixed, reason in (
        ({"training.clipp": Interval(0.1, 1.0)}, [], "training.clipp: .*did you mean clip"),
        ({"training.optimizer.momentum": MOMENTUM}, [], "momentum: exists if training.optimizer=sgd, which no knob"),
        ({"model.depth": Interval(0, 2)}, [], "depth"),
        ({rate: Interval(0.1, 1.0)}, [rate], "learning_rate: an arm or --set states its value"),
        ({"training.optimizer": Choice(("adamw", "sgd"))}, [rate], "optimizer: an arm or --set states its value"),
    ):
        with pytest.raises(ConfigError, match=reason):
            searched(run, fixed, added=added)
