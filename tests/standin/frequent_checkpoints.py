"""The library's runner, with a checkpoint after every step: a run that is killed has one to resume from."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import ClassVar

from lit_transformers import runs
from lit_transformers.runs.runner import RUNNER as LIBRARY

__all__ = ["RUNNER", "RunConfig"]

CHECKPOINT_SECONDS = 0.0


class RunConfig(runs.RunConfig):
    """The library's RunConfig, whose runs the runner of this module does."""

    runner: ClassVar[str] = "standin.frequent_checkpoints:RUNNER"


RUNNER = dataclasses.replace(LIBRARY, config=RunConfig, fit=partial(runs.fit, keep_every=CHECKPOINT_SECONDS))
