"""What training through the suite costs over a bare loop.

    python -m benchmarks.overhead [--device cuda] [--tiny] [--json NAME]

The suite trains as ``fit`` does: Lightning's loop with the suite's callbacks and data module. After every few of its
steps a bare loop takes as many with a network, an optimizer and a stream of its own, made alike, so that what else the
machine does falls on both. The bare loop does what no training can leave out: batches, memory and its resets, loss,
gradient, clipping, update, schedule. Checkpoints and validation are not part of the comparison; a checkpoint's cost
stands beside it. On CUDA the network is one that a GPU is for, in bfloat16, and every chunk is timed from an idle
device to an idle one.
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
from lit_transformers.callbacks import Curves, Keeper, Watch
from lit_transformers.files import CHECKPOINT
from lit_transformers.mixer import detach, empty_rows
from lit_transformers.record import quiet
from lit_transformers.run import RunConfig, contents, make_trainer
from lit_transformers.stopping import Stop

WARM = 3
"""Chunks that are not counted."""


class Case(NamedTuple):
    """A size, and how many steps make a chunk that one loop takes in turn."""

    name: str
    config: RunConfig
    steps: int
    goal: float


class Pair(NamedTuple):
    """Seconds per step of a chunk, on the clock and of the processor."""

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
        Case("dim 96, depth 2, segment 32, batch 32", config(96, 2, 4, 32, 32), 20, 0.05),
        Case("dim 512, depth 4, segment 128, batch 8", config(512, 4, 8, 128, 8), 2, 0.02),
    ),
    "cuda": (Case("dim 512, depth 12, segment 512, batch 32", config(512, 12, 8, 512, 32, "cuda"), 10, 0.02),),
}
"""By device."""


def tiny(device: str) -> Case:
    """A case that says nothing about speed."""
    return Case("dim 16, depth 1, segment 8, batch 4", config(16, 1, 2, 8, 4, device), 2, 0.05)


def bare_steps(config: RunConfig) -> Iterator[None]:
    """A step of a plain training loop each time it is asked."""
    torch.manual_seed(config.seed)
    data, device = LanguageData(config.data), torch.device(config.training.device)
    network = config.model.build(data.vocabulary.size, config.data.segment_length).to(device)
    optimizer, schedule = config.training.learn(network)
    parameters, state = list(network.parameters()), None
    for batch in data.train_dataloader():
        inputs, targets, keep, fresh = (
            part.to(device, non_blocking=True) for part in (batch.inputs, batch.targets, batch.keep, batch.fresh)
        )
        if state is not None:
            state = empty_rows(state, fresh)
        with autocast(device):
            read = network(inputs, state, keep)
            nats = network.tokens.nats(read.hidden, targets)  # type: ignore[operator, union-attr]
            loss = nats.sum() / (targets != IGNORED).sum()
        state = detach(read.state)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.training.clip or float("inf"))
        optimizer.step()
        schedule.step()
        yield


class Alternate(Callback):
    """Lets the bare loop take its steps after every chunk of the suite's, and notes both times."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.bare = bare_steps(case.config)
        self.pairs: list[Pair] = []
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
        self.pairs.append(Pair(*(seconds / self.case.steps for seconds in (suite[0], bare[0], suite[1], bare[1]))))
        self.begun = now()


def now() -> tuple[float, float]:
    """Of the clock and of the processor, when a device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    clock, processor = now()
    return clock - begun[0], processor - begun[1]


def measure(case: Case, chunks: int, folder: Path) -> tuple[list[Pair], float]:
    """The times of every chunk after the first few, and the seconds that one checkpoint takes."""
    case = case._replace(config=case.config.override({"training.steps": (chunks + WARM) * case.steps}))
    config, alternate = case.config, Alternate(case)
    torch.manual_seed(config.seed)
    data = LanguageData(config.data)
    keeper = Keeper(folder / CHECKPOINT, float("inf"), contents(config, data), Stop())
    curves = Curves(config.training.log_every, config.data.tokens_per_step)
    callbacks = [alternate, curves, Watch(lambda progress: None), keeper]
    trainer = make_trainer(config.training, folder, callbacks)
    with quiet():
        trainer.fit(config.build_task(data), data)
        return alternate.pairs[WARM:], timed(lambda: keeper.keep(trainer))


def timed(act: Callable[[], object]) -> float:
    begun = now()
    act()
    return since(begun)[0]


def summarise(case: Case, pairs: list[Pair], checkpoint: float) -> dict[str, Any]:
    """Medians; a ratio is the median of the chunks' own, so that a slow minute of the machine falls on both."""
    middle = {name: statistics.median(getattr(pair, name) for pair in pairs) for name in Pair._fields}
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
    found = []
    for case in [tiny(device)] if small else CASES[device]:
        with tempfile.TemporaryDirectory() as folder:
            told = summarise(case, *measure(case, chunks, Path(folder)))
        found.append(told)
        per_step = told["seconds_per_step"]
        table.add_row(
            case.name,
            f"{1000 * per_step['suite']:.2f}",
            f"{1000 * per_step['bare']:.2f}",
            f"{told['overhead']:+.1%}",
            " to ".join(f"{quartile:+.1%}" for quartile in told["overhead_quartiles"]),
            f"{told['overhead_processor']:+.1%}",
            f"{case.goal:.0%}",
            f"{told['checkpoint_seconds']:.2f}",
        )
    Console().print(table)
    if small:
        typer.echo("A tiny network: these numbers say that the script runs, and nothing about speed.")
    if json:
        save(json, {"hardware": describe(("lightning",)), "device": device, "tiny": small, "cases": found})


if __name__ == "__main__":
    typer.run(main)
