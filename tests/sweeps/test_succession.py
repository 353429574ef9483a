"""One run after another in the same worker: the next begins as soon as the last has ended."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from standin_runs import OPTIONS, go, states

from lit_transformers.run import RunConfig, run_key
from sweeps.share import Share
from sweeps.ticket import State, Ticket

SECONDS = 2.0
REAL = OPTIONS._replace(runner="lit_transformers.run", share=Share(workers=1, threads=1))


def tickets(folder: Path) -> list[Ticket]:
    """Three runs of the real library, which needs torch."""
    folder.mkdir()
    words = random.Random(0)
    for number in range(12):
        lines = [" ".join(words.choices(["alpha", "beta", "gamma"], k=6)) for _ in range(20)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    data = {"source": {"kind": "files", "path": str(folder), "validation": 0.2}, "segment_length": 8, "batch_size": 2}
    model = {"kind": "language_model", "dim": 8, "heads": 2, "depth": 1}
    plain = {"model": model, "data": data, "training": {"steps": 5, "device": "cpu"}}
    configs = [RunConfig.from_dict(plain | {"seed": seed}) for seed in range(3)]
    return [Ticket(run_key(config), "plain", config.seed, config.to_dict()) for config in configs]


@pytest.mark.slow
def test_a_run_begins_within_two_seconds_of_the_end_of_the_last(tmp_path: Path) -> None:
    """By its lock, which it takes when it begins, and by its record: torch is imported once, before them all."""
    wanted, runs = tickets(tmp_path / "corpus"), tmp_path / "runs"
    assert states(go(runs, wanted, REAL)) == [State.FINISHED] * 3
    places = [ticket.directory(runs) for ticket in wanted]
    gaps = [
        (then / "lock").stat().st_mtime - (first / "record.json").stat().st_mtime for first, then in pairwise(places)
    ]
    print(f"seconds between runs: {[round(gap, 2) for gap in gaps]}")
    assert min(gaps) > 0 and max(gaps) < SECONDS
