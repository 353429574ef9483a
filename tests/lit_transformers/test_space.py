"""Spaces say what can be: every path is a field, and every end a value of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datamodules import DATA, SOURCES
from lit_transformers.config import Config, ConfigError
from lit_transformers.mixers import MIXERS
from lit_transformers.models import MODELS
from lit_transformers.runs import RunConfig
from lit_transformers.space import Choice, Interval, require_valid, searched
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
    """Declares what it has not."""

    space = {"windw": Interval(1, 2)}  # noqa: RUF012

    window: int = 1


def test_a_mistyped_path_is_named() -> None:
    with pytest.raises(ConfigError, match=r"windw: Mistyped\.space names no field of it"):
        require_valid(Mistyped)
