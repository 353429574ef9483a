"""The stand-in, which records the process that imported it and the one that does a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lit_transformers.config import Plain
from standin import run
from standin.run import Interrupted, RunConfig, changes_nothing, describe, run_key

__all__ = ["NOTE", "Interrupted", "RunConfig", "changes_nothing", "describe", "fit", "run_key"]

NOTE = "processes.json"
IMPORTER = os.getpid()


def fit(config: RunConfig, directory: Path, progress: Any = None) -> dict[str, Plain]:
    (directory / NOTE).write_text(json.dumps([IMPORTER, os.getpid()]))
    return run.fit(config, directory, progress)
