"""Writes hardware and versions to a file, in a process that imports all that the kit needs: ``python -m
benchmarks.gpu.machine FILE``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.hardware import describe
from lit_transformers.records.files import write_json

NEEDED = ("ablations.run_command", "lit_transformers.runs")
"""A machine on which these cannot be imported is no use."""

if __name__ == "__main__":
    for module in NEEDED:
        import_module(module)
    write_json(Path(sys.argv[1]), describe(("lightning", "transformers", "fla-core")))
