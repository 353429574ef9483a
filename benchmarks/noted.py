"""The library's runner, which in addition records when a run's own work begins and ends, for benchmarks."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, ClassVar

from lit_transformers import runs
from lit_transformers.config import Plain
from lit_transformers.runs.runner import RUNNER as LIBRARY

__all__ = ["NOTE", "RUNNER", "TimedRunConfig"]

NOTE = "worked.json"


class TimedRunConfig(runs.RunConfig):
    """The library's RunConfig, whose runs the runner of this module does."""

    runner: ClassVar[str] = "benchmarks.noted:RUNNER"


def fit(config: TimedRunConfig, directory: Path, report: Any = None, **further: Any) -> dict[str, Plain]:
    """Does the run, and writes the times of its beginning and end, in seconds since the epoch, next to its record."""
    begun = time.time()
    record = LIBRARY.fit(config, directory, report, **further)
    (directory / NOTE).write_text(json.dumps([begun, time.time()]), encoding="utf-8")
    return record


RUNNER = dataclasses.replace(LIBRARY, config=TimedRunConfig, fit=fit)
