"""One sequence made of another: translation, summarization, strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, PairBatch
from lit_transformers.config import ConfigError, Fraction, Plain, Positive
from lit_transformers.cost import Cost, cost_of_pairs
from lit_transformers.decoding import BeamConfig, DecodingConfig, decode
from lit_transformers.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lit_transformers.models.model import ModelConfig, Read
from lit_transformers.tasks.task import Task, TaskConfig, averaged
from lit_transformers.tasks.text_metric import Scores, TextMetric, signatures
from lit_transformers.training import TrainingConfig

WRITTEN: frozenset[Scores] = frozenset({"bleu", "chrf", "rouge"})
"""Scores of what was decoded; the others are of what was said of right symbols."""


class Seq2SeqConfig(TaskConfig, kind="seq2seq"):
    """Every symbol of a target is predicted from its source and the right symbols before it (arXiv:1706.03762).

    label_smoothing: the share of the loss that is spread over the vocabulary (section 5.4); no reported number has it.
    metrics: bleu, chrf and rouge are of decoded texts, of 0 to 100; accuracy, of 0 to 1, is of symbols after the right
    ones, and sequence_accuracy of targets whose every symbol is: of those that greedy decoding gets right.
    decoding: how measured texts are written. counted: lengths of a source and a target for which FLOPs are told; None
    for the longest of training.
    """

    batches: ClassVar[type] = PairBatch

    label_smoothing: Fraction = 0.1
    metrics: tuple[Scores, ...] = ("bleu", "chrf")
    decoding: DecodingConfig = BeamConfig()
    counted: tuple[Positive, Positive] | None = None

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Seq2Seq:
        return Seq2Seq(self, model, data, training)

    def cost(self, model: ModelConfig, data: DataDescription) -> Cost:
        return cost_of_pairs(encoder_decoder(model), data, *self.counted_lengths(data))

    def counted_lengths(self, data: DataDescription) -> tuple[int, int]:
        return self.counted or (data.source_length, data.length)

    def random_batch(self, data: DataDescription) -> PairBatch:
        """Two pairs of random symbols, of which one source is shorter."""
        assert data.source is not None
        boundary = data.vocabulary.boundary
        source = torch.randint(1, data.source.size, (2, data.source_length))
        kept = torch.arange(data.source_length) < torch.tensor([[data.source_length], [data.source_length // 2 + 1]])
        target = torch.randint(1, data.vocabulary.size, (2, data.length))
        inputs = torch.cat([torch.full((2, 1), boundary), target[:, :-1]], dim=1)
        real, rows = torch.ones(2, data.length, dtype=torch.bool), torch.arange(2)
        return PairBatch(source * kept, kept, inputs, target, real, rows, 0 * rows, ((), ()), 0, None)

    def protocol(self) -> dict[str, Plain]:
        """Decoding, and the signatures of the scores; of what needs no decoding, nothing."""
        if not WRITTEN & {*self.metrics}:
            return {}
        return {"decoding": self.decoding.to_dict(), "scores": signatures(self.metrics)}


def encoder_decoder(model: ModelConfig) -> EncoderDecoderConfig:
    """The model, if it writes one sequence while it reads another. Raises ConfigError."""
    if not isinstance(model, EncoderDecoderConfig):
        raise ConfigError(f"seq2seq trains an encoder_decoder, not a {model.kind}", "model")
    return model


class Seq2Seq(Task):
    """Trains and measures a network that makes a target of a source."""

    config: Seq2SeqConfig
    network: EncoderDecoder
    metric: TextMetric

    def __init__(
        self, config: Seq2SeqConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built."""
        super().__init__(config, model, data, training)
        self.network = encoder_decoder(model).build_pairs(data)
        if self.training_config.compile:
            self.network.compile()
        self.writes = bool(WRITTEN & {*config.metrics})
        self.metric = TextMetric(config.metrics)

    def training_step(self, batch: PairBatch, batch_index: int) -> dict[str, Any]:
        read: Read = self.network(batch.source, batch.inputs, batch.source_keep, batch.keep)
        loss, nats = self.network.tokens.smoothed(read.hidden, batch.targets, self.config.label_smoothing)
        return self.learned(averaged(loss.sum(), batch.targets != IGNORED, nats.sum()), read.aux)

    def measured(self, batch: PairBatch) -> Float[Tensor, "b t v"]:
        evaluator = self.evaluator()
        read: Read = evaluator(batch.source, batch.inputs, batch.source_keep, batch.keep)
        return evaluator.tokens.log_probabilities(read.hidden)

    def validation_step(self, batch: PairBatch, batch_index: int) -> None:
        real = real_rows(batch)
        if not len(real.source):  # counted all the same: ranks gather states of one type
            self.metric.update(torch.zeros(*real.targets.shape, self.data.vocabulary.size), real, [])
            return
        written = self.write(real.source, real.source_keep) if self.writes else None
        self.metric.update(self.measured(real), real, written)

    def write(self, source: Int[Tensor, "b s"], keep: Bool[Tensor, "b s"]) -> Sequence[str]:
        """What decoding makes of every source, as text."""
        assert self.data.written is not None
        decoded = decode(self.evaluator(), source, keep, self.config.decoding, self.data.vocabulary.boundary)
        return [self.data.written(symbols) for symbols in decoded.symbols]


def real_rows(batch: PairBatch) -> PairBatch:
    """The batch without rows of padding, which a rank shows that is through while others are not."""
    real = batch.keep.any(dim=1)
    if bool(real.all()):
        return batch
    kept = [place for place, is_real in enumerate(real.tolist()) if is_real]
    cut: dict[str, Any] = {name: part[kept] for name, part in batch._asdict().items() if isinstance(part, Tensor)}
    return batch._replace(**cut | {"references": tuple(batch.references[place] for place in kept)})
