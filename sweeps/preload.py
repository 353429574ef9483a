"""What the fork server imports: the runner that it was told of, with no look for garbage meanwhile nor in it later.

A fifth of the time to import torch and Lightning went into that; and pages that no collection writes to stay shared
between the server and its forks (Python's documentation of ``gc.freeze``).
"""

from __future__ import annotations

import gc
import importlib
import os

RUNNER = "LIT_TRANSFORMERS_RUNNER"
"""The variable that tells it."""

if runner := os.environ.pop(RUNNER, None):
    gc.disable()
    try:
        importlib.import_module(runner)
        importlib.import_module("sweeps.worker")
    finally:
        gc.freeze()
        gc.enable()
