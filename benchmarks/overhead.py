"""The cost of training through the suite over a bare loop.

    python -m benchmarks.overhead [--device cuda] [--tiny] [--json NAME]

The suite trains as ``fit`` does: Lightning's loop with the suite's callbacks and data module. After every few of its
steps a bare loop takes as many with an equal network, an equal optimizer and a separate stream, so that other load on
the machine affects both. The bare loop does the work of every training: batches, memory and its resets, loss, gradient,
clipping, update, schedule. Checkpoints and validation are not part of the comparison; the cost of a checkpoint is
reported separately. On CUDA the network is of a size for a GPU, in bfloat16, and the device is idle at the beginning
and at the end of every timed chunk.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import lightning as L
import torch
import typer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.layer_timing import autocast
from datamodules import LanguageData
from lit_transformers.batch import IGNORED
from lit_transformers.mixer import detach, empty_rows
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents, make_trainer, quiet
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
from lit_transformers.training.reporting import ProgressReporter
from lit_transformers.training.stopping import Stop

WARM = 3
"""Warm-up chunks, which are not counted."""


class OverheadCase(NamedTuple):
    """A config to time, the steps of a chunk that each loop takes in turn, and the goal for the relative overhead."""

    name: str
    config: RunConfig
    steps: int
    goal: float


class StepSeconds(NamedTuple):
    """Seconds per step of a chunk in wall-clock and in processor time, for the suite and for the bare loop."""

    suite: float
    bare: float
    suite_processor: float
    bare_processor: float


def config(dim: int, depth: int, heads: int, segment: int, batch: int, device: str = "cpu") -> RunConfig:
    return RunConfig.from_dict(
        {
            "model": {
                "kind": "language_model",
                "dim": dim,
                "depth": depth,
                "heads": heads,
                "mixer": {"kind": "attention", "encoding": "xl", "memory": segment},
            },
            "data": {"source": {"kind": "stdlib", "piece": 4096}, "segment_length": segment, "batch_size": batch},
            "training": {"device": device, "precision": "bf16" if device == "cuda" else "32"},
        }
    )


CASES = {
    "cpu": (
        OverheadCase("dim 96, depth 2, segment 32, batch 32", config(96, 2, 4, 32, 32), 20, 0.05),
        OverheadCase("dim 512, depth 4, segment 128, batch 8", config(512, 4, 8, 128, 8), 2, 0.02),
    ),
    "cuda": (OverheadCase("dim 512, depth 12, segment 512, batch 32", config(512, 12, 8, 512, 32, "cuda"), 10, 0.02),),
}
"""The cases by device."""


def tiny(device: str) -> OverheadCase:
    """A small case that only checks that the script runs."""
    return OverheadCase("dim 16, depth 1, segment 8, batch 4", config(16, 1, 2, 8, 4, device), 2, 0.05)


def bare_steps(config: RunConfig) -> Iterator[None]:
    """Takes a step of a plain training loop at each iteration."""
    torch.manual_seed(config.seed)
    data, device = LanguageData(config.data), torch.device(config.training.device)
    network = config.model.build(data.description).to(device)
    optimizer, schedule = config.training.learn(network)
    parameters, state = list(network.parameters()), None
    for batch in data.train_dataloader():
        inputs, targets, padding_mask, fresh = (
            part.to(device, non_blocking=True)
            for part in (batch.inputs, batch.targets, batch.padding_mask, batch.fresh)
        )
        if state is not None:
            state = empty_rows(state, fresh)
        with autocast(device):
            outputs = network(inputs, state, padding_mask)
            nats = network.tokens.nll(outputs.hidden, targets)  # type: ignore[operator, union-attr]
            loss = nats.sum() / (targets != IGNORED).sum()
        state = detach(outputs.state)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.training.clip or float("inf"))
        optimizer.step()
        schedule.step()
        yield


class Alternate(Callback):
    """Runs a chunk of the bare loop after every chunk of the suite's, and records both times."""

    def __init__(self, case: OverheadCase) -> None:
        self.case = case
        self.bare = bare_steps(case.config)
        self.pairs: list[StepSeconds] = []
        self.begun = (0.0, 0.0)

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.begun = now()

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        if trainer.global_step % self.case.steps:
            return
        suite = since(self.begun)
        begun = now()
        for _ in range(self.case.steps):
            next(self.bare)
        bare = since(begun)
        self.pairs.append(
            StepSeconds(*(seconds / self.case.steps for seconds in (suite[0], bare[0], suite[1], bare[1])))
        )
        self.begun = now()


def now() -> tuple[float, float]:
    """Wall-clock and processor time in seconds, once the device has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    clock, processor = now()
    return clock - begun[0], processor - begun[1]


def measure(case: OverheadCase, chunks: int, folder: Path) -> tuple[list[StepSeconds], float]:
    """The times of every chunk after the warm-up, and the seconds that one checkpoint takes."""
    case = case._replace(config=case.config.override({"training.steps": (chunks + WARM) * case.steps}))
    config, alternate = case.config, Alternate(case)
    torch.manual_seed(config.seed)
    data = LanguageData(config.data)
    checkpointer = Checkpointer(folder / CHECKPOINT, float("inf"), contents(config, data, ""), Stop())
    curves = Curves(config.training.log_every, config.data.tokens_per_step)
    callbacks = [alternate, curves, ProgressReporter(lambda progress: None), DivergenceCheck(), checkpointer]
    trainer = make_trainer(config.training, folder, callbacks)
    with quiet():
        task = config.build_task(data)
        task.reports_training = False
        trainer.fit(task, data)
        return alternate.pairs[WARM:], timed(lambda: checkpointer.save(trainer))


def timed(act: Callable[[], object]) -> float:
    begun = now()
    act()
    return since(begun)[0]


def summarise(case: OverheadCase, pairs: list[StepSeconds], checkpoint: float) -> dict[str, Any]:
    """Medians over chunks. Ratios are taken chunk by chunk first, so that a slow minute of the machine affects both."""
    middle = {name: statistics.median(getattr(pair, name) for pair in pairs) for name in StepSeconds._fields}
    ratios = [pair.suite / pair.bare for pair in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "case": case.name,
        "goal": case.goal,
        "chunks": len(pairs),
        "steps_per_chunk": case.steps,
        "seconds_per_step": middle,
        "overhead": statistics.median(ratios) - 1,
        "overhead_quartiles": [low - 1, high - 1],
        "overhead_processor": statistics.median(pair.suite_processor / pair.bare_processor for pair in pairs) - 1,
        "checkpoint_seconds": checkpoint,
    }


def main(
    chunks: Annotated[int, typer.Option(min=4, help="Chunks of each loop.")] = 30,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda (bf16).")] = "cpu",
    small: Annotated[bool, typer.Option("--tiny", help="A tiny network, to check this script.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints how much longer a step takes through the suite."""
    if device not in CASES:
        raise typer.BadParameter(f"there is no device {device}, but {', '.join(CASES)}", param_hint="--device")
    torch.set_num_threads(threads)
    table = Table("size", "suite ms", "bare ms", "overhead", "quartiles", "of processor", "goal", "checkpoint s")
    results = []
    for case in [tiny(device)] if small else CASES[device]:
        with tempfile.TemporaryDirectory() as folder:
            summary = summarise(case, *measure(case, chunks, Path(folder)))
        results.append(summary)
        per_step = summary["seconds_per_step"]
        table.add_row(
            case.name,
            f"{1000 * per_step['suite']:.2f}",
            f"{1000 * per_step['bare']:.2f}",
            f"{summary['overhead']:+.1%}",
            " to ".join(f"{quartile:+.1%}" for quartile in summary["overhead_quartiles"]),
            f"{summary['overhead_processor']:+.1%}",
            f"{case.goal:.0%}",
            f"{summary['checkpoint_seconds']:.2f}",
        )
    Console().print(table)
    if small:
        typer.echo("A tiny network: these numbers say that the script runs, and nothing about speed.")
    if json:
        save(json, {"hardware": describe(("lightning",)), "device": device, "tiny": small, "cases": results})


if __name__ == "__main__":
    typer.run(main)
