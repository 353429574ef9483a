"""``lit_transformers.run``, which in addition records when a run's own work begins and ends, for benchmarks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lit_transformers import run
from lit_transformers.config import Plain
from lit_transformers.run import Interrupted, changes_nothing, describe, run_key

__all__ = ["NOTE", "Interrupted", "RunConfig", "changes_nothing", "describe", "fit", "run_key"]

NOTE = "worked.json"


class RunConfig(run.RunConfig):
    """The library's RunConfig under this module's name: a config's module determines which ``fit`` its runs use."""


def fit(config: RunConfig, directory: Path, report: Any = None, **further: Any) -> dict[str, Plain]:
    """Does the run, and writes the times at which it began and ended, in seconds since the epoch, beside its record."""
    begun = time.time()
    record = run.fit(config, directory, report, **further)
    (directory / NOTE).write_text(json.dumps([begun, time.time()]), encoding="utf-8")
    return record
