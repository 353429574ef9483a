"""Settings of every test: one thread each, since tests run side by side; no example is timed; the stand-in of
``lit_transformers.run`` (``tests/standin``) importable here and in the processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).resolve().parent
for folder in (str(TESTS.parent), str(TESTS)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
