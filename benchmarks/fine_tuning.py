"""Fine-tuning through the suite and through the Trainer of transformers: examples a second, and nats after an epoch.

    python -m benchmarks.fine_tuning [--examples 8000] [--seeds 3] [--rounds 3] [--tiny] [--json NAME]

Both fine-tune a released MiniLM (22.7 M parameters) on sentences of SST-2 with the same head, optimizer, schedule,
dropout and batch size, in float32, and are measured on the same sentences of validation.

Speed: in turns, each trains on as many sentences, the Trainer in random order, its default, and grouped by length.
Ratios are of examples per second of processor time, median over rounds, above 1 where the suite is faster.
Nats: after one epoch, paired by seed; differences are negative where the suite is better.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
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
from lit_transformers.tasks.pooled import PooledTask
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
from lit_transformers.training.reporting import ProgressReporter
from lit_transformers.training.stopping import Stop

EXAMPLE = Path(__file__).parent.parent / "examples" / "trec.yaml"
"""A run that fine-tunes the released network."""
BATCH, RATE, DROPOUT, WARMUP = 32, 1e-4, 0.1, 0.1
ORDERS = ("random", "group_by_length")
"""How the Trainer samples: its default, and rows of about equal lengths together."""


class Trained(NamedTuple):
    """Seconds of training, by the clock and by processor time, and the logits of a batch after it."""

    clock: float
    processor: float
    logits: Callable[[LabelledBatch], Tensor]


def config_of(examples: int, seed: int) -> RunConfig:
    """Returns the run: one epoch over so many sentences, with BERT's head, which starts from the released pooler."""
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
        clock, processor = since(begun)
    task.eval()
    return Trained(clock, processor, task.evaluation_output)


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
    clock, processor = since(begun)
    model.eval()

    def logits(batch: LabelledBatch) -> Tensor:
        return cast("Tensor", model(input_ids=batch.inputs, attention_mask=batch.padding_mask.long()).logits)

    return Trained(clock, processor, logits)


def trained(config: RunConfig, name: str) -> Trained:
    """Trains through the suite ("ours"), or by the Trainer in an order."""
    with tempfile.TemporaryDirectory() as folder:
        return ours(config, Path(folder)) if name == "ours" else theirs(config, name, Path(folder))


def released_folder() -> Path:
    """Returns the folder of the released weights."""
    network = cast("Any", RunConfig.from_yaml(EXAMPLE).start.network)
    return locate(network.path, "start.network.path", ("LIT_WEIGHTS",))


@torch.no_grad()
def nats_of(logits: Callable[[LabelledBatch], Tensor], data: LabelledData) -> Tensor:
    """Returns the nats of each sentence of validation, in its order."""
    examples, nats = [], []
    for batch in data.val_dataloader():
        examples.append(batch.example)
        nats.append(F.cross_entropy(logits(batch), batch.labels, reduction="none"))
    return torch.cat(nats)[torch.cat(examples).argsort()]


def rates(examples: int, rounds: int) -> dict[str, Any]:
    """Trains in turns, the suite and the Trainer in both orders, and returns examples a second with their ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in ("ours", *ORDERS)}
    for number in range(rounds + 1):
        config = config_of(examples, number)
        for name in seconds:
            run = trained(config, name)
            if number:  # the first round warms up
                seconds[name].append(run.processor)
    per_second = {name: examples / statistics.median(of_rounds) for name, of_rounds in seconds.items()}
    ratios = {
        order: statistics.median(slow / fast for slow, fast in zip(seconds[order], seconds["ours"], strict=True))
        for order in ORDERS
    }
    return {"examples": examples, "rounds": rounds, "examples_per_second": per_second, "ratios": ratios}


def differences(examples: int, seeds: int) -> dict[str, Any]:
    """Trains an epoch of each seed by the suite and by the Trainer in both orders, and returns nats by seed."""
    rows = []
    for seed in range(seeds):
        config = config_of(examples, seed)
        row: dict[str, float] = {}
        for name in ("ours", *ORDERS):
            run = trained(config, name)
            row[name] = float(nats_of(run.logits, cast("LabelledData", config.build_data())).mean())
        rows.append(row)
    means = {order: statistics.mean(row["ours"] - row[order] for row in rows) for order in ORDERS}
    return {"examples": examples, "seeds": rows, "mean_differences": means}


def main(
    examples: Annotated[int, typer.Option(min=BATCH, help="Train on this many sentences for the nats.")] = 8000,
    seeds: Annotated[int, typer.Option(min=1, help="Train this many seeds for the nats.")] = 3,
    rounds: Annotated[int, typer.Option(min=0, help="Time this many rounds, after a round of warm-up; 0: none.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Use this many threads.")] = 1,
    tiny: Annotated[bool, typer.Option("--tiny", help="Train on few sentences, to check this script.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Print examples a second of both, and the difference of their nats."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    timed = rates(BATCH * (2 if tiny else 20), 1 if tiny else rounds) if rounds else None
    if timed is not None:
        table = Table("examples a second", "suite", *ORDERS)
        per_second, ratios = timed["examples_per_second"], timed["ratios"]
        table.add_row("", *(f"{per_second[name]:.1f}" for name in ("ours", *ORDERS)))
        table.add_row("suite, times faster", "", *(f"{ratios[order]:.2f}" for order in ORDERS))
        Console().print(table)
    measured = differences(BATCH * 2 if tiny else examples, 1 if tiny else seeds)
    table = Table("nats of seed", "suite", *ORDERS)
    for seed, row in enumerate(measured["seeds"]):
        table.add_row(str(seed), *(f"{row[name]:.4f}" for name in ("ours", *ORDERS)))
    table.add_row("suite, difference", "", *(f"{measured['mean_differences'][order]:.4f}" for order in ORDERS))
    Console().print(table)
    if tiny:
        typer.echo("Few sentences: these numbers say that the script runs, and nothing about speed.")
    if json:
        hardware = describe(("lightning", "transformers"))
        save(json, {"hardware": hardware, "tiny": tiny, "speed": timed, "nats": measured})


if __name__ == "__main__":
    typer.run(main)
