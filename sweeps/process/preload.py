"""Imported by the fork server: imports and preloads the runner, so that the runs forked from the server need not."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from types import TracebackType

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.config import ConfigError
from lit_transformers.runner import load_runner
from lit_transformers.startup.quick_imports import quick_imports

RUNNER = "LIT_TRANSFORMERS_RUNNER"
"""The environment variable that names the runner."""


def end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints no traceback where a command was killed while it requested a process: the server ends with its command."""
    if not issubclass(kind, EOFError):
        sys.__excepthook__(kind, error, trace)


if runner := os.environ.pop(RUNNER, None):
    sys.excepthook = end_quietly
    with quick_imports(), suppress(ConfigError):  # of a plug-in, which the forked process meets again and tells
        load_runner(runner).preload()
        importlib.import_module("sweeps.process.worker")
