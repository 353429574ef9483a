"""Imported by the fork server: imports the runner with garbage collection off, and exempts its objects later.

Collection took a fifth of the time to import torch and Lightning; and memory pages that no collection writes to stay
shared between the server and its forks (Python's documentation of ``gc.freeze``).
"""

from __future__ import annotations

import gc
import importlib
import os

RUNNER = "LIT_TRANSFORMERS_RUNNER"
"""The environment variable that names the runner."""

if runner := os.environ.pop(RUNNER, None):
    gc.disable()
    try:
        importlib.import_module(runner)
        importlib.import_module("sweeps.worker")
    finally:
        gc.freeze()
        gc.enable()
