"""The real ``lit_transformers.run``, with checkpoints so often that a run which is killed has one to resume from."""

from __future__ import annotations

from functools import partial

from lit_transformers import run
from lit_transformers.run import Interrupted, changes_nothing, describe, run_key

__all__ = ["Interrupted", "RunConfig", "changes_nothing", "describe", "fit", "run_key"]

KEEP_SECONDS = 0.3

fit = partial(run.fit, keep_every=KEEP_SECONDS)


class RunConfig(run.RunConfig):
    """The library's RunConfig under this module's name: a baseline's module determines which ``fit`` its runs use."""
