"""Tokens per second at the sizes of demos, next to those of another commit.

    python -m benchmarks.demo_speed --against COMMIT [--cases xl,lags] [--tiny] [--json NAME]

Both commits train and evaluate through the suite, each in a separate process with one thread, the other commit in a
worktree in a temporary folder. They take turns block by block, and ratios are taken between neighbouring blocks, so
that other load on the machine affects both. Rates are of processor time, which such load disturbs less than the clock.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parents[1]
WARM = 1
"""Blocks of each commit that are not counted."""
TINY: Mapping[str, Any] = {"model.dim": 8, "model.depth": 1}


class Demo(NamedTuple):
    """A config to time: where a baseline is, as "module:NAME", and its overrides. Paths are of both commits."""

    baseline: str
    overrides: tuple[str, ...] = ()
    changes: Mapping[str, Any] = {}

    def config(self) -> Any:
        """Returns the RunConfig, which validates at the end alone."""
        module, _, name = self.baseline.partition(":")
        baselines = import_module(module)
        config = getattr(baselines, name)
        for overrides in self.overrides:
            config = config.override(getattr(baselines, overrides))
        return config.override(self.changes | {"training.validate_every": None})


BASELINES, PAIRS = "ablations.baselines", "ablations.pairs"
CASES = {
    "xl": Demo(f"{BASELINES}:TRANSFORMER_XL"),
    "lags": Demo(f"{BASELINES}:TRANSFORMER_XL", ("LAGS",)),
    "xl in segments": Demo(f"{BASELINES}:CHARACTERS", ("LAGS_IN_SEGMENTS",), {"model.mixer.encoding": "xl"}),
    "rotary": Demo(f"{BASELINES}:CHARACTERS", ("LAGS_IN_SEGMENTS",), {"model.mixer.encoding": "rotary"}),
    "window": Demo(
        f"{BASELINES}:CHARACTERS",
        ("LAGS_IN_SEGMENTS",),
        {"model.mixer": {"kind": "window", "window": 16, "encoding": "xl"}},
    ),
    "characters": Demo(f"{BASELINES}:CHARACTERS"),
    "encoder": Demo(f"{BASELINES}:SUMS"),
    "strings": Demo(f"{PAIRS}:STRINGS"),
    "translation": Demo(f"{PAIRS}:TRANSLATION"),
}


class Rate(NamedTuple):
    """Tokens a second of one block, by the clock and by processor time."""

    clock: float
    processor: float


class RatePair(NamedTuple):
    """Neighbouring blocks of this commit and of the other one."""

    here: Rate
    there: Rate


def worker(name: str, blocks: int, steps: int, tiny: bool) -> None:
    """Trains and evaluates one case with the packages of PYTHONPATH. Waits for a line before every block, and prints
    the block's tokens, seconds and processor seconds after it; the first line says that it is ready."""
    from lightning.pytorch.callbacks import Callback

    from lit_transformers.records.files import CHECKPOINT
    from lit_transformers.runs.train import contents, make_trainer, quiet
    from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
    from lit_transformers.training.reporting import ProgressReporter
    from lit_transformers.training.stopping import Stop

    torch.set_num_threads(1)
    config = CASES[name].config().override({"training.steps": (blocks + WARM) * steps} | (TINY if tiny else {}))

    def say(*numbers: float) -> None:
        print(json.dumps(numbers), file=output, flush=True)

    def wait() -> tuple[float, float]:
        sys.stdin.readline()
        return time.perf_counter(), time.process_time()

    class Turns(Callback):
        """Waits before a block of steps, and prints its times after it."""

        def on_train_start(self, trainer: Any, task: Any) -> None:
            say(0)
            self.begun = wait()

        def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, batch: Any, i: int) -> None:
            if trainer.global_step % steps == 0:
                clock, processor = self.begun
                say(steps * config.tokens_per_step, time.perf_counter() - clock, time.process_time() - processor)
                if trainer.global_step < config.training.steps:
                    self.begun = wait()

    output, sys.stdout = sys.stdout, sys.stderr
    torch.manual_seed(config.seed)
    data = config.data.build()
    with tempfile.TemporaryDirectory() as folder, quiet():
        checkpointer = Checkpointer(Path(folder) / CHECKPOINT, float("inf"), contents(config, data, ""), Stop())
        curves = Curves(config.training.log_every, config.tokens_per_step)
        callbacks = [curves, ProgressReporter(lambda progress: None), DivergenceCheck(), Turns(), checkpointer]
        trainer, task = make_trainer(config.training, Path(folder), callbacks), config.build_task(data)
        task.reports_training = False
        trainer.fit(task, data)
        for _ in range(blocks // 4 + WARM):
            clock, processor = wait()
            trainer.validate(task, data, verbose=False)
            times = time.perf_counter() - clock, time.process_time() - processor
            say(sum(document.tokens for document in task.metric.per_document()), *times)


class Worker:
    """A process that trains and evaluates one case with the packages of a checkout."""

    def __init__(self, checkout: Path, name: str, blocks: int, steps: int, tiny: bool) -> None:
        options = [name, "--worker", "--blocks", str(blocks), "--steps", str(steps), *(["--tiny"] if tiny else [])]
        variables = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--cases", *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables, text=True
        )

    def read(self) -> list[float]:
        """Returns the next line of numbers. Raises RuntimeError where the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process {' '.join(map(str, self.process.args))} has ended")  # type: ignore[arg-type]
        numbers: list[float] = json.loads(line)
        return numbers

    def block(self) -> Rate:
        """Lets the process do its next block."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        tokens, clock, processor = self.read()
        return Rate(tokens / clock, tokens / processor)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def measure(name: str, other: Path, blocks: int, steps: int, tiny: bool) -> tuple[list[RatePair], list[RatePair]]:
    """Returns the pairs of training and of evaluation of one case, without those of the warm-up."""
    workers = [Worker(checkout, name, blocks, steps, tiny) for checkout in (REPOSITORY, other)]
    try:
        for each in workers:
            each.read()
        training = [alternate(workers, number) for number in range(blocks + WARM)]
        evaluation = [alternate(workers, number) for number in range(blocks // 4 + WARM)]
    finally:
        for each in workers:
            each.end()
    return training[WARM:], evaluation[WARM:]


def alternate(workers: Sequence[Worker], number: int) -> RatePair:
    """Lets both processes do a block. Which of them is first changes with every pair."""
    here, there = workers
    if number % 2:
        later = there.block()
        return RatePair(here.block(), later)
    return RatePair(here.block(), there.block())


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Checks a commit out into a temporary folder."""
    git = ["git", "-C", str(REPOSITORY)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(path)], check=True)


def summarise(pairs: Sequence[RatePair]) -> dict[str, Any]:
    """Medians over blocks. Ratios are taken pair by pair first, so that a slow minute of the machine affects both."""
    summary: dict[str, Any] = {"blocks": len(pairs)}
    for quantity in Rate._fields:
        here, there = ([getattr(block, quantity) for block in side] for side in zip(*pairs, strict=True))
        ratios = [first / second for first, second in zip(here, there, strict=True)]
        summary[quantity] = {
            "here": statistics.median(here),
            "there": statistics.median(there),
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
        }
    return summary


def row(name: str, phase: str, summary: Mapping[str, Any]) -> list[str]:
    clock, processor = summary["clock"], summary["processor"]
    low, high = processor["quartiles"]
    rates = [f"{side:,.0f}" for side in (processor["here"], processor["there"])]
    ratios = [f"{processor['ratio']:.2f}", f"{low:.2f} to {high:.2f}", f"{clock['ratio']:.2f}"]
    return [name, phase, *rates, *ratios]


def main(
    against: Annotated[str, typer.Option(help="The other commit.")] = "HEAD",
    cases: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(CASES)}.")] = ",".join(CASES),
    blocks: Annotated[
        int, typer.Option(min=8, help="Blocks of steps of each commit; a quarter as many evaluations.")
    ] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a block.")] = 20,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny networks, to check this script.")] = False,
    json: Annotated[
        str, typer.Option(help="Also write the numbers to benchmarks/results/NAME.json, or to a path.")
    ] = "",
    is_worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Prints tokens per second of this checkout and of another commit, and their ratios."""
    if is_worker:
        worker(cases, blocks, steps, tiny)
        return
    from benchmarks.hardware import describe, save

    names = cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise typer.BadParameter(f"there is no case {unknown[0]}, but {', '.join(CASES)}", param_hint="--cases")
    table = Table(
        "case", "", "here", "there", "ratio", "quartiles", "by the clock", title="tokens a second of processor"
    )
    results = []
    with worktree(against) as other:
        for name in names:
            phases = zip(("training", "evaluation"), measure(name, other, blocks, steps, tiny), strict=True)
            summaries = {phase: summarise(pairs) for phase, pairs in phases}
            results.append({"case": name} | summaries)
            for phase, summary in summaries.items():
                table.add_row(*row(name, phase, summary))
    Console().print(table)
    if tiny:
        typer.echo("Tiny networks: these numbers say that the script runs, and nothing about speed.")
    if json:
        save(json, {"hardware": describe(("lightning",)), "against": against, "tiny": tiny, "cases": results})


if __name__ == "__main__":
    typer.run(main)
