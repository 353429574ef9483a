"""Writes hardware and versions to a file, in a process that imports all that the kit needs: ``python -m
benchmarks.gpu.machine FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

import lit_transformers.runs  # noqa: F401  a machine on which these cannot be imported is no use
from benchmarks.hardware import describe
from lit_transformers.records.files import write_json

if __name__ == "__main__":
    write_json(Path(sys.argv[1]), describe(("lightning", "transformers", "fla-core")))
