"""How runs are best divided among the cores of a machine: ``python -m benchmarks.packing [--json NAME]``.

The same four runs are done twice: side by side with one thread each, which is the default of ``python -m ablations
run``, and one after another with all threads. Both ways begin with a fork server that has imported torch already, and
both are timed from the first run's start to the last one's end.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers.machine.cores import usable_cores
from lit_transformers.runs import RunConfig, run_key
from sweeps.launchers.local import Options, launch
from sweeps.launchers.share import Share, share_machine
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board, Row
from sweeps.process.child import prepare_server

ARMS = 4
SIZES = {"dim 64, depth 2": (64, 2, 32, 32, 300), "dim 256, depth 4": (256, 4, 64, 16, 40)}
"""Width, depth, segment length, batch size, and updates of a run."""


def tickets(dim: int, depth: int, segment: int, batch: int, steps: int) -> list[Ticket]:
    """One ticket for each of ``ARMS`` seeds; all runs cost the same."""
    config = RunConfig.from_dict(
        {
            "model": {
                "kind": "language_model",
                "dim": dim,
                "depth": depth,
                "heads": 4,
                "mixer": {"kind": "attention", "encoding": "xl", "memory": segment},
            },
            "data": {
                "source": {"kind": "stdlib", "piece": 4096},
                "segment_length": segment,
                "batch_size": batch,
                "evaluation": {"documents": 8},
            },
            "training": {"device": "cpu", "steps": steps},
        }
    )
    configs = [config.override({"seed": seed}) for seed in range(ARMS)]
    return [Ticket(run_key(seeded), f"seed {seeded.seed}", seeded.seed, seeded.to_dict()) for seeded in configs]


def seconds(planned: list[Ticket], share: Share) -> float:
    """Seconds that all the runs take together. Raises RuntimeError where one fails, for its time would mean nothing."""
    with tempfile.TemporaryDirectory() as folder:
        runs, rows = Path(folder), [Row(ticket) for ticket in planned]
        ledger = Ledger(runs)
        try:
            begun = time.monotonic()
            launch(runs, ledger, Board(Console(file=StringIO())), rows, Options(RunConfig.runner, share, "val/bpb"))
            elapsed = time.monotonic() - begun
        finally:
            ledger.close()
    failed = [row.reason for row in rows if row.state != State.FINISHED]
    if failed:
        raise RuntimeError(f"a run did not finish: {failed[0]}")
    return elapsed


def measure(planned: list[Ticket], ways: dict[str, Share], rounds: int) -> dict[str, Any]:
    """Seconds of each way, timed in turns so that other load affects both, and the ratio of their medians."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, share in ways.items():
            times[name].append(seconds(planned, share))
    sequential, parallel = (statistics.median(times[name]) for name in ("one after another", "side by side"))
    return {"seconds": times, "ratio": parallel / sequential}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each way is timed.")] = 3,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints the time of four runs both ways, and their ratio; the goal on two cores is 0.6 for small models."""
    cores = usable_cores()
    ways = {"one after another": Share(1, cores), "side by side": share_machine(ARMS)}
    prepare_server(RunConfig.runner)
    table = Table("size", *(f"{name}: {share.workers} x {share.threads} s" for name, share in ways.items()), "ratio")
    sizes = {}
    for name, size in SIZES.items():
        result = sizes[name] = measure(tickets(*size), ways, rounds)
        table.add_row(
            name, *(f"{statistics.median(result['seconds'][way]):.1f}" for way in ways), f"{result['ratio']:.2f}"
        )
    Console().print(table)
    if json:
        save(json, {"hardware": describe(("torch", "lightning")), "sizes": sizes})


if __name__ == "__main__":
    typer.run(main)
