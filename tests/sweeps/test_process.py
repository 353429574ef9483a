"""Processes of runs: a run begins as soon as the last has ended, for all that it needs has been imported once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from sweeps.process import prepare_server

LOOK = "import pathlib, sys; pathlib.Path({place!r}).write_text(' '.join(sys.modules))"


@pytest.mark.slow
def test_a_process_begins_with_torch_and_lightning_imported(tmp_path: Path) -> None:
    """What a run needs takes seconds to import; ``benchmarks.orchestration`` measures the time between two runs."""
    prepare_server("lit_transformers.run")
    found = tmp_path / "modules.txt"
    process = multiprocessing.get_context("forkserver").Process(target=exec, args=(LOOK.format(place=str(found)),))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert {"torch", "lightning.pytorch", "lit_transformers.run", "sweeps.worker"} <= set(found.read_text().split())
