"""The real ``lit_transformers.run`` that notes when a run's own work begins and ends, for a parent that measures."""

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
    """The library's own, under this module's name: the module of a config says how its runs are done."""


def fit(config: RunConfig, directory: Path, report: Any = None, **further: Any) -> dict[str, Plain]:
    """Does the run, and leaves the times of the clock at which it began and ended beside its record."""
    begun = time.time()
    record = run.fit(config, directory, report, **further)
    (directory / NOTE).write_text(json.dumps([begun, time.time()]), encoding="utf-8")
    return record
