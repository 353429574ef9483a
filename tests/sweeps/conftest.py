"""Makes the stand-in of ``lit_transformers.run`` importable here and in the processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
HOUSE = str(Path(__file__).resolve().parents[2])
for folder in (HOUSE, TESTS):
    if folder not in sys.path:
        sys.path.insert(0, folder)
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, HOUSE, os.environ.get("PYTHONPATH", "")])
