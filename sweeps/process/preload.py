"""Imported by the fork server: imports and preloads the runner, so that the runs forked from the server need not."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

import lit_transformers.cli.search_path  # noqa: F401  # isort: split
from lit_transformers.cli.startup import quick_imports
from lit_transformers.config import ConfigError
from lit_transformers.runner import load_runner

RUNNER = "LIT_TRANSFORMERS_RUNNER"
"""The environment variable that names the runner."""

if runner := os.environ.pop(RUNNER, None):
    with quick_imports(), suppress(ConfigError):  # of a plug-in, which the forked process meets again and tells
        load_runner(runner).preload()
        importlib.import_module("sweeps.process.worker")
