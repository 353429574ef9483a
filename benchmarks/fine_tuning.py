"""Fine-tuning through the suite and through the Trainer of transformers: examples a second, and nats after an epoch.

    python -m benchmarks.fine_tuning [--examples 8000] [--seeds 3] [--tiny] [--json NAME]

Both fine-tune a released MiniLM (22.7 M parameters) on sentences of SST-2 with the same head, optimizer, schedule,
dropout and batch size, in float32, and are measured on the same sentences of validation. For each seed they train an
epoch in turns, each in a new process as its own commands start one; the Trainer trains in random order, its default,
and grouped by length. On a CPU a process of the suite has huge pages.

Speed: ratios are of examples per second of processor time, median over seeds, above 1 where the suite is faster.
Nats: paired by seed; differences are negative where the suite is better.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.overhead import now, since
from datamodules.core.reading import locate
from datamodules.labelled.labelled import LabelledData
from lit_transformers.batch import LabelledBatch
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.train import contents, make_trainer, quiet, starting_task
from lit_transformers.startup.quick_imports import HUGE_PAGES
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
from lit_transformers.training.reporting import ProgressReporter
from lit_transformers.training.stopping import Stop

EXAMPLE = Path(__file__).parent.parent / "examples" / "trec.yaml"
"""A run that fine-tunes the released network."""
BATCH, RATE, DROPOUT, WARMUP = 32, 1e-4, 0.1, 0.1
ORDERS = ("random", "group_by_length")
"""How the Trainer samples: its default, and rows of about equal lengths together."""
NAMES = ("ours", *ORDERS)


class Trained(NamedTuple):
    """The seconds of processor time that training took, and the logits of a batch after it."""

    seconds: float
    logits: Callable[[LabelledBatch], Tensor]


class Epoch(NamedTuple):
    """An epoch of training: its seconds of processor time, and the nats per sentence of validation after it."""

    seconds: float
    nats: float


def config_of(examples: int, seed: int) -> RunConfig:
    """Returns a run of one epoch over ``examples`` sentences with BERT's head, which starts from the released
    pooler."""
    steps = -(-examples // BATCH)
    return RunConfig.from_yaml(EXAMPLE).override(
        {
            "task.pooling": "first",
            "task.hidden": "tanh",
            "task.dropout": DROPOUT,
            "start.heads": "network",
            "data.source.corpus": "sst2",
            "data.source.length": 128,
            "data.source.examples": examples,
            "data.batch_size": BATCH,
            "data.seed": seed,
            "seed": seed,
            "training.steps": steps,
            "training.optimizer": {"kind": "adamw", "learning_rate": RATE, "weight_decay": 0.0, "beta2": 0.999},
            "training.schedule": {"kind": "linear", "warmup": max(1, round(WARMUP * steps))},
            "training.clip": 1.0,
            "training.validate_every": None,
        }
    )


def ours(config: RunConfig, folder: Path) -> Trained:
    """Trains through the suite, as ``fit`` does."""
    torch.manual_seed(config.seed)
    data = cast("LabelledData", config.build_data())
    weights = {part: file_of_source(source, part) for part, source in config.start.sources().items()}
    checkpointer = Checkpointer(folder / CHECKPOINT, float("inf"), contents(config, data, ""), Stop())
    curves = Curves(config.training.log_every, config.data.tokens_per_step)
    callbacks = [curves, ProgressReporter(lambda progress: None), DivergenceCheck(), checkpointer]
    with quiet():
        task = cast("PooledTask", starting_task(config, data, weights)[0])
        task.reports_training = False
        trainer = make_trainer(config.training, folder, callbacks)
        begun = now()
        trainer.fit(task, data)
        _, seconds = since(begun)
    task.eval()
    return Trained(seconds, task.evaluation_output)


class TrainingSentences(torch.utils.data.Dataset[Mapping[str, Any]]):
    """The sentences of training that the suite reads, for the Trainer."""

    def __init__(self, data: LabelledData) -> None:
        boundary, examples = data.description.vocabulary.boundary, data.examples
        read = (examples.example("train", ordinal) for ordinal in range(examples.count("train")))
        self.rows = [{"input_ids": [boundary, *example.symbols.tolist()], "labels": example.label} for example in read]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        return self.rows[number]


def theirs(config: RunConfig, order: str, folder: Path) -> Trained:
    """Trains BertForSequenceClassification by the Trainer of transformers."""
    data = cast("LabelledData", config.build_data())
    source = released_folder()
    transformers.set_seed(config.seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=config.training.steps,
        learning_rate=RATE,
        weight_decay=0.0,
        lr_scheduler_type="linear",
        warmup_steps=max(1, round(WARMUP * config.training.steps)),
        max_grad_norm=1.0,
        seed=config.seed,
        train_sampling_strategy=order,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(
        model, arguments, transformers.DataCollatorWithPadding(tokenizer), train_dataset=TrainingSentences(data)
    )
    begun = now()
    trainer.train()
    _, seconds = since(begun)
    model.eval()

    def logits(batch: LabelledBatch) -> Tensor:
        return cast("Tensor", model(input_ids=batch.inputs, attention_mask=batch.padding_mask.long()).logits)

    return Trained(seconds, logits)


def epoch(name: str, config: RunConfig, threads: int) -> Epoch:
    """Trains through the suite ("ours"), or by the Trainer in an order."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        trained = ours(config, Path(folder)) if name == "ours" else theirs(config, name, Path(folder))
    return Epoch(trained.seconds, nats_of(trained.logits, cast("LabelledData", config.build_data())))


def epoch_in_new_process(name: str, config: RunConfig, threads: int) -> Epoch:
    """Returns ``epoch`` of a new process, which has huge pages if the suite trains."""
    os.environ[HUGE_PAGES] = "1" if name == "ours" else "0"
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(epoch, name, config, threads).result()


def released_folder() -> Path:
    """Returns the folder of the released weights."""
    network = cast("Any", RunConfig.from_yaml(EXAMPLE).start.network)
    return locate(network.path, "start.network.path", ("LIT_WEIGHTS",))


@torch.no_grad()
def nats_of(logits: Callable[[LabelledBatch], Tensor], data: LabelledData) -> float:
    """Returns the nats per sentence of validation."""
    nats = [F.cross_entropy(logits(batch), batch.labels, reduction="none") for batch in data.val_dataloader()]
    return float(torch.cat(nats).mean())


def measure(examples: int, seeds: int, threads: int) -> dict[str, Any]:
    """Trains an epoch of each seed by the suite and by the Trainer in both orders; returns examples a second with their
    ratios, and nats by seed with their mean differences."""
    epochs = [
        {name: epoch_in_new_process(name, config_of(examples, seed), threads) for name in NAMES}
        for seed in range(seeds)
    ]
    ratios = {
        order: statistics.median(of_seed[order].seconds / of_seed["ours"].seconds for of_seed in epochs)
        for order in ORDERS
    }
    means = {
        order: statistics.mean(of_seed["ours"].nats - of_seed[order].nats for of_seed in epochs) for order in ORDERS
    }
    per_second = {name: examples / statistics.median(of_seed[name].seconds for of_seed in epochs) for name in NAMES}
    nats = [{name: of_seed[name].nats for name in NAMES} for of_seed in epochs]
    return {
        "speed": {"examples": examples, "examples_per_second": per_second, "ratios": ratios},
        "nats": {"examples": examples, "seeds": nats, "mean_differences": means},
    }


def main(
    examples: Annotated[int, typer.Option(min=BATCH, help="Train on this many sentences.")] = 8000,
    seeds: Annotated[int, typer.Option(min=1, help="Train this many seeds.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Use this many threads.")] = 1,
    tiny: Annotated[bool, typer.Option("--tiny", help="Train on few sentences, to check this script.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Print examples a second of both, and the difference of their nats."""
    measured = measure(BATCH * 2 if tiny else examples, 1 if tiny else seeds, threads)
    speed, nats = measured["speed"], measured["nats"]
    table = Table("", "suite", *ORDERS)
    table.add_row("examples a second", *(f"{speed['examples_per_second'][name]:.1f}" for name in NAMES))
    table.add_row("suite, times faster", "", *(f"{speed['ratios'][order]:.2f}" for order in ORDERS))
    for seed, row in enumerate(nats["seeds"]):
        table.add_row(f"nats of seed {seed}", *(f"{row[name]:.4f}" for name in NAMES))
    table.add_row("suite, difference", "", *(f"{nats['mean_differences'][order]:.4f}" for order in ORDERS))
    Console().print(table)
    if tiny:
        typer.echo("Few sentences: these numbers say that the script runs, and nothing about speed.")
    if json:
        torch.set_num_threads(threads)
        save(json, {"hardware": describe(("lightning", "transformers")), "tiny": tiny} | measured)


if __name__ == "__main__":
    typer.run(main)
