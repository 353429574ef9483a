"""The config of a run of any command: its words, its parameters, its folder, and how its numbers are read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lit_transformers.command_runs.placeholders import filled_shell_line, filled_text, filled_words, names_in_text
from lit_transformers.command_runs.values import JsonLinesConfig, ValuesConfig
from lit_transformers.config import Config, ConfigError, NonNegativeFloat, Plain, Positive, Seed, nearest
from lit_transformers.records.measure import Goal
from lit_transformers.space import knobs_of
from lit_transformers.trust import PROGRAM

__all__ = [
    "Budget",
    "CommandDataConfig",
    "CommandRunConfig",
    "CommandTrainingConfig",
    "MeasuredSplitConfig",
    "SourceFolderConfig",
]

Budget = Literal["parameters", "tokens", "flops"]
"""The quantities on which arms may be matched by a number that a command prints."""

RESERVED = {
    "seed": "the seed of the run",
    "steps": "training.steps",
    "split": "data.evaluation.split",
    "folder": "the working folder of the run",
    "source": "the folder that the working folder is a copy of",
    "resume_from": "the working folder that an earlier attempt has left, empty at the first one",
    "python": "the Python that runs this suite",
}
"""The placeholders that are no parameters, and the meaning of each."""

CHOICES = ("last", "first", "lowest", "highest")
"""Which of the values of a metric over steps is the result of a run, where it is not that of one step."""


class SourceFolderConfig(Config):
    """The folder of the command's code. Each run works in a copy of it, and its content is part of the key of the run.

    ignore: patterns of names or paths that are no part of it, besides those of its .gitignore, version control, caches,
    environments, logs, folders of results (runs, wandb, outputs, ...) and studies. limit: the most MiB that it may
    hold.
    """

    path: str = "."
    ignore: tuple[str, ...] = ()
    limit: Positive = 64

    @classmethod
    def spelled_out(cls, plain: Plain) -> Plain:
        return {"path": plain} if isinstance(plain, str) else plain


class MeasuredSplitConfig(Config):
    """The split that the command measures: the value of its placeholder {split}."""

    split: Literal["validation", "test"] = "validation"


class CommandDataConfig(Config):
    """Files and folders that the command reads, whose content is part of the key of a run. A path within the source
    folder is linked into the working folder; others are named absolutely, or below LIT_DATA.

    evaluation: of a command with the placeholder {split}, which split it measures: a search selects on one and reports
    the other.
    """

    files: tuple[str, ...] = ()
    evaluation: MeasuredSplitConfig | None = None


class CommandTrainingConfig(Config):
    """The budget of a run, and where it is spent.

    steps: the value of the placeholder {steps}; None for a command without it. device: "auto" gives each run a CUDA
    device where there are any; "cpu" gives none.
    """

    steps: Positive | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"


class CommandRunConfig(Config):
    """All that a run of a command depends on.

    command: a line as in a shell, or a list of words, with placeholders: ``python train.py --lr {lr} --seed {seed}``.
    params: the values of the placeholders, which factors override: ``params.lr``. metrics: the names of the numbers
    that a run must leave, with their goals: {"val_loss": "minimize"}. values: how numbers are read. choose: which of
    the values over steps is the result: "last", "first", "lowest", "highest", or the one at a step, by metric.
    environment: variables, which may hold placeholders. files: texts that are written into the working folder before
    the command starts, by path. shell: whether a shell reads the command; values are quoted for it.
    resume: the working folder in which a stopped run starts again: "folder", its old one, whose path is in
    {resume_from} and in the variable LIT_RESUME_FROM, or "anew", a fresh one.
    budgets: the names of numbers that the command prints, by the budget that they state: {"parameters": "n_params"}.
    short: overrides that make a run short, for gates and for measurements of budgets: {"training.steps": 5}.
    repeats_within: how far the metrics of two runs with the same seed may differ.
    search: the values that tuning may try, by path: {"params.lr": {"low": 1e-4, "high": 1e-1, "log": True}}.
    """

    runner: ClassVar[str] = "lit_transformers.command_runs.runner:RUNNER"
    program: ClassVar[Sequence[str]] = PROGRAM
    absent: ClassVar[Mapping[str, str]] = {
        "start": "runs of commands have no stages; name a file of weights in data.files",
        "model": "a command builds its own; set params",
    }

    command: str | tuple[str, ...]
    metrics: Annotated[dict[str, Goal], Field(min_length=1)]
    params: dict[str, Plain] = field(default_factory=dict)
    values: ValuesConfig = JsonLinesConfig()
    choose: dict[str, str | int] = field(default_factory=dict)
    folder: SourceFolderConfig | None = SourceFolderConfig()
    data: CommandDataConfig = CommandDataConfig()
    training: CommandTrainingConfig = CommandTrainingConfig()
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    shell: bool = False
    resume: Literal["folder", "anew"] = "anew"
    budgets: dict[Budget, str] = field(default_factory=dict)
    short: dict[str, Plain] = field(default_factory=dict)
    repeats_within: NonNegativeFloat = 0.0
    seed: Seed = 0
    search: dict[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "space", knobs_of(self, self.search))
        if self.short:
            try:
                self.shortened()
            except ConfigError as error:
                raise error.under("short") from None

    def conflicts(self) -> Iterator[str]:
        self._check_words()
        self._check_placeholders()
        for path in self.files:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ConfigError("is no path within the working folder", f"files.{path}")
        for name, choice in self.choose.items():
            if name not in self.metrics:
                raise ConfigError(f"is no metric; {nearest(name, self.metrics)}", f"choose.{name}")
            if isinstance(choice, str) and choice not in CHOICES:
                reason = f"is {', '.join(CHOICES)} or the number of a step, not {choice!r}"
                raise ConfigError(reason, f"choose.{name}")
        yield from ()

    def shortened(self) -> CommandRunConfig:
        """Returns the config of a short run."""
        return self.override({**self.short, "short": {}, "search": {}})

    @property
    def words(self) -> list[str]:
        """The words of the command, with placeholders; for a shell, one line."""
        if isinstance(self.command, tuple):
            return [*self.command]
        return [self.command] if self.shell else shlex.split(self.command)

    def filled_command(self, places: Mapping[str, str]) -> list[str]:
        """Returns the words that start the program. places: the values of placeholders that name places."""
        values = self.placeholder_values(places)
        if self.shell:
            return ["/bin/sh", "-c", filled_shell_line(self.words[0], values)]
        return filled_words(self.words, values)

    def filled(self, text: str, places: Mapping[str, str]) -> str:
        """Returns a text with the values of its placeholders."""
        return filled_text(text, self.placeholder_values(places))

    def placeholder_values(self, places: Mapping[str, str]) -> dict[str, Plain]:
        """Returns the values of all placeholders that the config has values for."""
        values: dict[str, Plain] = {**self.params, **places, "seed": self.seed}
        if self.training.steps is not None:
            values["steps"] = self.training.steps
        if self.data.evaluation is not None:
            values["split"] = self.data.evaluation.split
        return values

    def _check_words(self) -> None:
        if self.shell and not isinstance(self.command, str):
            raise ConfigError("a shell reads one line; write the command as a text", "command")
        try:
            words = self.words
        except ValueError as error:
            raise ConfigError(f"cannot be split into words: {error}", "command") from None
        if not words or not words[0].strip():
            raise ConfigError("is empty; write it as in a shell: python train.py --seed {seed}", "command")

    def _check_placeholders(self) -> None:
        """Raises ConfigError for a placeholder without a value, and for a value without a placeholder."""
        texts = [("command", text) for text in self.words]
        texts += [(f"environment.{name}", text) for name, text in self.environment.items()]
        texts += [(f"files.{path}", text) for path, text in self.files.items()]
        texts += [("values.file", self.values.written_file)] if self.values.written_file else []
        places = dict.fromkeys(("folder", "source", "resume_from", "python"), "")
        known, used = self.placeholder_values(places), set[str]()
        for name in self.params:
            if name in RESERVED:
                raise ConfigError(f"is a placeholder for {RESERVED[name]}; choose another name", f"params.{name}")
        for path, text in texts:
            used |= {*names_in_text(text)}
            for name in names_in_text(text):
                if name in ("steps", "split") and name not in known:
                    raise ConfigError(f"holds {{{name}}}, and {RESERVED[name]} has no value; set it", path)
            try:
                filled_words([text], known) if path == "command" and not self.shell else filled_text(text, known)
            except ConfigError as error:
                raise ConfigError(error.reason, error.path or path) from None
        for name in self.params:
            if name not in used:
                raise ConfigError(f"has no effect: nothing holds the placeholder {{{name}}}", f"params.{name}")
        values = {"seed": "--seed {seed}", "steps": "--steps {steps}", "split": "--split {split}"}
        for name, example in values.items():
            if name in known and name not in used:
                way_out = f"; write {example} where the command takes it, or set a variable in environment"
                raise ConfigError(f"nothing holds the placeholder {{{name}}} of {RESERVED[name]}{way_out}", "command")
