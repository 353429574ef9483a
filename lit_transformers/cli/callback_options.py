"""Callbacks and loggers on a command line."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import typer

from lit_transformers.cli.completion import completed_from
from lit_transformers.config import ConfigError, nearest
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.wandb_target import WandbMode

__all__ = ["Callbacks", "ChosenLoggers", "Loggers", "callback_assignments", "chosen_loggers"]

LOGGERS = ("csv", "mlflow", "tensorboard", "trackio", "wandb")
Callbacks = Annotated[
    list[str] | None,
    typer.Option(
        "--callback",
        metavar="MODULE.CLASS",
        help="A Lightning callback of every run, also 'MODULE.CLASS{patience: 3}'; part of its key. Repeatable.",
    ),
]


Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        metavar="NAME",
        help=f"{', '.join(LOGGERS)}: a logger of every run. Changes no number. Repeatable.",
        autocompletion=completed_from(lambda: LOGGERS),
    ),
]


class ChosenLoggers(NamedTuple):
    """wandb: whether runs are sent to Weights & Biases; names: the other loggers."""

    wandb: WandbMode
    names: tuple[str, ...]


def callback_assignments(specifications: Iterable[str]) -> list[str]:
    """Returns the assignments that ``--set`` would take for callbacks: none, or one of all callbacks to
    training.callbacks.

    Raises ConfigError where arguments are no mapping in YAML.
    """
    callbacks = []
    for specification in specifications:
        path, brace, text = specification.partition("{")
        try:
            arguments = read_yaml(brace + text) if brace else {}
        except ValueError as error:
            raise ConfigError(f"{specification!r}: the arguments are no YAML: {error}", "--callback") from None
        if not isinstance(arguments, dict):
            raise ConfigError(f"{specification!r}: write module.Class or module.Class{{name: value}}", "--callback")
        callbacks.append({"class_path": path.strip(), "init_args": arguments})
    return [f"training.callbacks={json.dumps(callbacks)}"] if callbacks else []


def chosen_loggers(names: Iterable[str] | None, wandb: WandbMode = "disabled") -> ChosenLoggers:
    """Returns the loggers that ``--logger`` and ``--wandb`` choose; ``--logger wandb`` is ``--wandb offline``. Raises
    ConfigError for a logger that is not known or not installed."""
    chosen = dict.fromkeys(names or ())
    for name in chosen:
        if name not in LOGGERS:
            raise ConfigError(f"no logger {name!r}; {nearest(name, LOGGERS)}", "--logger")
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise ConfigError(f"needs the package {name}: pip install 'lit-transformers[loggers]'", f"--logger {name}")
    mode: WandbMode = "offline" if "wandb" in chosen and wandb == "disabled" else wandb
    return ChosenLoggers(mode, tuple(name for name in chosen if name != "wandb"))
