"""Pretraining through the suite next to transformers' networks of the same size in a bare loop, on the same rows.

    python -m benchmarks.pretraining [--cases "masked symbols,replaced symbols"] [--tiny] [--json NAME]

The suite trains as ``fit`` does: Lightning's loop with the suite's callbacks and data module. After every chunk of its
steps a bare loop takes as many, so that other load on the machine affects both: loss, gradient, clipping, the same
fused AdamW, no schedule. Both read rows of the same data, each for itself, with the same dropout, in float32.

    masked symbols      BERT, next to BertForMaskedLM. Only the positions that are predicted reach our softmax.
    rows of documents   the same with rows that end with their document. Ours are sorted by length within a window, as
                        the suite does by default; theirs come in any order and are padded to the longest of a batch.
    replaced symbols    ELECTRA, next to ElectraForMaskedLM and ElectraForPreTraining trained by hand as one.
    symbols in order    XLNet with both streams, next to XLNetLMHeadModel with equal orders as masks, without memory.

A target is a hidden symbol. Ratios are above 1 where ours is faster, and are medians over chunks: of neighbouring
chunks of the two loops.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import lightning as L
import torch
import typer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PretrainedConfig,
    XLNetConfig,
    XLNetLMHeadModel,
)

from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.overhead import now, since
from datamodules import RowDataConfig, StdlibConfig, WordPieceConfig
from lit_transformers.batch import IGNORED, DataDescription, RowBatch
from lit_transformers.exchange.architectures import BERT, ELECTRA, XLNET
from lit_transformers.exchange.convert import read_config
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents, make_trainer, quiet
from lit_transformers.tasks import MaskedLMConfig, PermutationLMConfig, ReplacedTokensConfig
from lit_transformers.tasks.permutation_lm import ordered_rows
from lit_transformers.tasks.replaced_tokens import SymbolGeneratorConfig
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.reporting import ProgressReporter
from lit_transformers.training.stopping import Stop

WARM = 1
"""Chunks that are not counted."""
WINDOW = 4
"""Batches that are sorted together, which is also the number of steps of a chunk: chunks are of about equal length."""
DETECTION_WEIGHT = 50.0
"""Of the discriminator's loss (arXiv:2003.10555, table 6)."""


class PretrainingSizes(NamedTuple):
    """Of a network and its rows. generator: the share of dim, heads and width that a generator has."""

    symbols: int
    length: int
    batch: int
    dim: int
    heads: int
    depth: int
    embedding: int
    generator: float

    def fields(self, share: float = 1.0) -> dict[str, Any]:
        """The fields of a config of transformers, of which a share of dim, heads and width is taken."""
        return {
            "hidden_size": int(self.dim * share),
            "num_hidden_layers": self.depth,
            "num_attention_heads": int(self.heads * share),
            "intermediate_size": int(4 * self.dim * share),
            "max_position_embeddings": self.length,
        }


FULL = PretrainingSizes(symbols=8192, length=128, batch=16, dim=256, heads=4, depth=4, embedding=128, generator=0.25)
TINY = PretrainingSizes(symbols=512, length=32, batch=4, dim=32, heads=4, depth=1, embedding=16, generator=0.25)


class BertForRows(nn.Module):
    """BertForMaskedLM and its loss, which takes the logits of all positions."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.model = BertForMaskedLM(config)

    def forward(self, batch: RowBatch) -> Tensor:
        loss: Tensor = self.model(**inputs_of(batch), labels=batch.targets).loss
        return loss


class ElectraForRows(nn.Module):
    """A generator and a discriminator of transformers with shared embeddings, and the sum of their losses."""

    def __init__(self, generator: ElectraConfig, discriminator: ElectraConfig) -> None:
        super().__init__()
        self.generator = ElectraForMaskedLM(generator)
        self.discriminator = ElectraForPreTraining(discriminator)
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        self.generator.tie_weights()

    def forward(self, batch: RowBatch) -> Tensor:
        hidden = batch.targets != IGNORED
        generated = self.generator(**inputs_of(batch), labels=batch.targets)
        draws = torch.distributions.Categorical(logits=generated.logits[hidden].detach()).sample()
        symbols = batch.inputs.masked_scatter(hidden, draws)
        logits = self.discriminator(**inputs_of(batch) | {"input_ids": symbols}).logits
        replaced = symbols != torch.where(hidden, batch.targets, batch.inputs)
        real = batch.padding_mask
        detection = F.binary_cross_entropy_with_logits(logits[real], replaced[real].to(logits.dtype))
        loss: Tensor = generated.loss + DETECTION_WEIGHT * detection
        return loss


class XLNetForRows(nn.Module):
    """XLNetLMHeadModel and its loss, for the symbols that are predicted, in the orders that ours draws."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.model = XLNetLMHeadModel(config)

    def forward(self, batch: RowBatch) -> Tensor:
        scored = batch.targets != IGNORED
        rows = ordered_rows(batch, "targets")
        later = (rows.places[:, :, None] <= rows.places[:, None, :]) & scored[:, None, :]
        loss: Tensor = self.model(
            input_ids=rows.symbols,
            attention_mask=batch.padding_mask.float(),
            token_type_ids=batch.segments,
            perm_mask=later.float(),
            target_mapping=F.one_hot(rows.at, scored.size(1)).float(),
            labels=batch.targets.gather(1, rows.at),
        ).loss
        return loss


def inputs_of(batch: RowBatch) -> dict[str, Tensor]:
    """The inputs of a network of transformers."""
    return {
        "input_ids": batch.inputs,
        "attention_mask": batch.padding_mask.long(),
        "token_type_ids": batch.segments,
    }


class PretrainingCase(NamedTuple):
    """Our config; the data that their loop reads; and their network for a description of data."""

    config: RunConfig
    their_data: RowDataConfig
    theirs: Callable[[DataDescription], nn.Module]


def data_config(sizes: PretrainingSizes) -> RowDataConfig:
    return RowDataConfig(
        source=StdlibConfig(),
        tokenizer=WordPieceConfig(size=sizes.symbols, train_bytes=1_000_000),
        length=sizes.length,
        batch_size=sizes.batch,
        window=WINDOW,
    )


def bert(sizes: PretrainingSizes, packing: str) -> PretrainingCase:
    """Masked language modelling. packing: the content of a row."""
    config = BertConfig(**sizes.fields())
    data = data_config(sizes).override({"packing": packing})
    ours = RunConfig(model=our_model(BERT, config), task=MaskedLMConfig(), data=data, training=training())
    full = packing == "full_sentences"
    return PretrainingCase(
        ours,
        data if full else data.override({"window": 1}),
        lambda data: BertForRows(BertConfig(**sizes.fields(), vocab_size=data.vocabulary.size)),
    )


def electra(sizes: PretrainingSizes) -> PretrainingCase:
    """Replaced token detection."""
    share, fields = sizes.generator, {"embedding_size": sizes.embedding}
    generator = SymbolGeneratorConfig(
        overrides={
            "dim": int(sizes.dim * share),
            "heads": int(sizes.heads * share),
            "feedforward.width": int(4 * sizes.dim * share),
        }
    )
    task = ReplacedTokensConfig(generator=generator, weight=DETECTION_WEIGHT)
    model = our_model(ELECTRA, ElectraConfig(**sizes.fields(), **fields))
    ours = RunConfig(model=model, task=task, data=data_config(sizes), training=training())

    def theirs(data: DataDescription) -> ElectraForRows:
        size = fields | {"vocab_size": data.vocabulary.size}
        return ElectraForRows(ElectraConfig(**sizes.fields(share), **size), ElectraConfig(**sizes.fields(), **size))

    return PretrainingCase(ours, data_config(sizes), theirs)


def xlnet(sizes: PretrainingSizes) -> PretrainingCase:
    """Permutation language modelling, without memory."""
    fields = {"d_model": sizes.dim, "n_layer": sizes.depth, "n_head": sizes.heads, "d_inner": 4 * sizes.dim}
    model = our_model(XLNET, XLNetConfig(**fields))
    ours = RunConfig(model=model, task=PermutationLMConfig(), data=data_config(sizes), training=training())
    return PretrainingCase(
        ours,
        data_config(sizes),
        lambda data: XLNetForRows(XLNetConfig(**fields, vocab_size=data.vocabulary.size)),
    )


def our_model(architecture: Any, config: PretrainedConfig) -> Any:
    """Our config of the network that theirs describes."""
    return read_config(architecture, config.to_dict())


def training() -> TrainingConfig:
    return TrainingConfig(device="cpu", log_every=10)


CASES: dict[str, Callable[[PretrainingSizes], PretrainingCase]] = {
    "masked symbols": partial(bert, packing="full_sentences"),
    "rows of documents": partial(bert, packing="doc_sentences"),
    "replaced symbols": electra,
    "symbols in order": xlnet,
}


def bare_steps(case: PretrainingCase) -> Iterator[int]:
    """Takes a step of a plain loop with their network at each iteration; yields the number of its targets."""
    torch.manual_seed(case.config.seed)
    data = case.their_data.build()
    network = case.theirs(data.description).train()
    optimizer = case.config.training.optimizer.build(network)
    parameters = list(network.parameters())
    for batch in data.train_dataloader():
        loss = network(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, case.config.training.clip or float("inf"))
        optimizer.step()
        yield targets_of(batch)


def targets_of(batch: RowBatch) -> int:
    """The hidden symbols of a batch."""
    return int((batch.targets != IGNORED).sum())


class ChunkRates(NamedTuple):
    """Targets per second of two neighbouring chunks, by the clock and by processor time."""

    ours: float
    theirs: float
    ours_processor: float
    theirs_processor: float


class TakeTurns(Callback):
    """Has the bare loop take as many steps after every chunk of the suite's, and keeps the rates of both."""

    def __init__(self, case: PretrainingCase) -> None:
        self.bare = bare_steps(case)
        self.rates: list[ChunkRates] = []
        self.begun, self.targets = (0.0, 0.0), 0

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.begun = now()

    def on_train_batch_end(
        self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: RowBatch, i: int
    ) -> None:
        self.targets += targets_of(batch)
        if trainer.global_step % WINDOW:
            return
        ours = [self.targets / seconds for seconds in since(self.begun)]
        begun = now()
        their_targets = sum(next(self.bare) for _ in range(WINDOW))
        theirs = [their_targets / seconds for seconds in since(begun)]
        self.rates.append(ChunkRates(ours[0], theirs[0], ours[1], theirs[1]))
        self.begun, self.targets = now(), 0


def measure(case: PretrainingCase, chunks: int, folder: Path) -> list[ChunkRates]:
    """The rates of every chunk after the warm-up."""
    config = case.config.override({"training.steps": (chunks + WARM) * WINDOW})
    torch.manual_seed(config.seed)
    data, turns = config.data.build(), TakeTurns(case)
    checkpointer = Checkpointer(folder / CHECKPOINT, float("inf"), contents(config, data, ""), Stop())
    curves = Curves(config.training.log_every, config.data.tokens_per_step)
    callbacks = [turns, curves, ProgressReporter(lambda progress: None), DivergenceCheck(), checkpointer]
    trainer = make_trainer(config.training, folder, callbacks)
    with quiet():
        task = config.build_task(data)
        task.reports_training = False
        trainer.fit(task, data)
    return turns.rates[WARM:]


def summarise(name: str, rates: list[ChunkRates]) -> dict[str, Any]:
    """Medians over chunks. Ratios are taken chunk by chunk first, so that a slow minute of the machine affects both."""
    return {
        "case": name,
        "chunks": len(rates),
        "targets_per_second": {
            name: statistics.median(getattr(rate, name) for rate in rates) for name in ChunkRates._fields
        },
        "ratio": statistics.median(rate.ours / rate.theirs for rate in rates),
        "ratio_processor": statistics.median(rate.ours_processor / rate.theirs_processor for rate in rates),
    }


def main(
    cases: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(CASES),
    chunks: Annotated[int, typer.Option(min=1, help=f"Chunks of {WINDOW} steps of each loop.")] = 9,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small networks, to check this script.")] = False,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Prints targets a second of both, and how many times faster ours is."""
    names = [name.strip() for name in cases.split(",")]
    if unknown := [name for name in names if name not in CASES]:
        raise typer.BadParameter(f"there is no {unknown[0]!r}, but {', '.join(CASES)}", param_hint="--cases")
    torch.set_num_threads(threads)
    table = Table("targets a second", "ours", "transformers", "ratio", "of processor time")
    results, sizes = [], TINY if tiny else FULL
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            summary = summarise(name, measure(CASES[name](sizes), chunks, Path(folder)))
        results.append(summary)
        rates = summary["targets_per_second"]
        table.add_row(
            name,
            f"{rates['ours']:,.0f}",
            f"{rates['theirs']:,.0f}",
            f"{summary['ratio']:.2f}",
            f"{summary['ratio_processor']:.2f}",
        )
    Console().print(table)
    if tiny:
        typer.echo("Tiny networks: these numbers say that the script runs, and nothing about speed.")
    if json:
        hardware = describe(("lightning", "transformers"))
        save(json, {"hardware": hardware, "tiny": tiny, "sizes": sizes._asdict(), "cases": results})


if __name__ == "__main__":
    typer.run(main)
