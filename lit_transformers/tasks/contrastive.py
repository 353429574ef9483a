"""Contrastive pretraining: a row is matched with the n-gram that is hidden in it (InfoWord, arXiv:1910.08350)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError, NonNegativeFloat, Positive, PositiveFloat
from lit_transformers.heads.contrast import ContrastConfig, MaskedSymbolsConfig, NgramContrast, Ngrams, longest_spans
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.tasks.masked_lm import MaskedLMConfig, read_rows, two_sided
from lit_transformers.tasks.pair_metric import refuse_pairs
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig


class ContrastiveConfig(TaskConfig, kind="contrastive"):
    """The first vector of a row, in which an n-gram is hidden, is compared with that of the n-gram, [CLS] n-gram [SEP],
    by the same network, and with those of the n-grams of the other rows of the batch, over all ranks (arXiv:1910.08350,
    section 4). Hidden symbols are predicted as well, in the same pass.

    The n-gram is the longest span that the data hide in a row, the first one of several: mask_spans or mask_ngrams
    serve as ``data.noise``, with ``unchanged`` and ``replaced`` at 0, so that it does not stand in the row.

    loss: info_nce, -log of the softmax over all n-grams (equation 2 there); binary_nce, the logistic loss of the own
    n-gram as real, and of each other one as noise (arXiv:1310.4546, equation 4). An n-gram of other rows that is the
    same is none of the others.
    temperature: the scores are divided by it. longest: symbols of an n-gram that are read, the first ones.
    masked_weight: of the loss of hidden symbols; the contrastive one counts 1.
    Compare evaluations of the same evaluation.batch_size of the data.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    loss: Literal["info_nce", "binary_nce"] = "info_nce"
    temperature: PositiveFloat = 1.0
    longest: Positive = 10
    masked_weight: NonNegativeFloat = 1.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Contrastive:
        return Contrastive(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        contrast = ContrastConfig(loss=self.loss, temperature=self.temperature, longest=self.longest)
        return {"ngrams": contrast, "masked": MaskedSymbolsConfig(weight=self.masked_weight)}

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)

    def protocol(self) -> dict[str, Any]:
        return {"loss": self.loss, "longest": self.longest}


class Contrastive(Task):
    """Trains and measures a network by the n-grams that are hidden in its rows, against those hidden in other rows."""

    config: ContrastiveConfig
    network: RowNetwork
    parts: ClassVar[tuple[str, ...]] = ("ngrams",)
    data: RowDescription

    def __init__(
        self,
        config: ContrastiveConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or sees one side alone, or where rows are ordered, so that
        the first symbol may see no other."""
        reader = two_sided(model, config.kind)
        super().__init__(config, model, data, training)
        if self.data.ordered:
            raise ConfigError("the first symbol of a row has to see all of it; drop data.attention_masks", "task")
        refuse_pairs(self.data, config.kind)
        self.network = reader.build(data)
        if not config.masked_weight:
            for parameter in self.network.prediction_only():
                parameter.requires_grad_(False)
        self.add_heads()

    def unused(self) -> list[nn.Parameter]:
        return [*super().unused(), *(parameter for parameter in self.parameters() if not parameter.requires_grad)]

    @property
    def contrast(self) -> NgramContrast:
        """The head that compares rows with n-grams."""
        return cast("NgramContrast", self.heads["ngrams"])

    def other_flops(self, length: int) -> float:
        """Returns those of reading the longest n-gram."""
        read = self.contrast.longest + 2
        return self.network.flops(read) - self.network.softmax_flops(read)

    def read(self, network: RowNetwork, batch: RowBatch) -> Representation:
        """Runs the network on rows and on their n-grams, whose first vectors (b, d) are the part "ngrams"."""
        ngrams = longest_spans(batch.targets, self.contrast.longest)
        rows = read_rows(network, batch)
        read = self.read_ngrams(network, ngrams)
        aux = {name: loss + read.aux.get(name, torch.zeros_like(loss)) for name, loss in rows.aux.items()}
        return Representation(network, rows.hidden, aux=aux, parts={"ngrams": read.hidden[:, 0]})

    def read_ngrams(self, network: RowNetwork, ngrams: Ngrams) -> ModelOutput:
        """Runs the network on [CLS] n-gram [SEP] of each row."""
        count, longest = ngrams.symbols.shape
        symbols = F.pad(ngrams.symbols, (1, 1), value=0)
        symbols[:, 0] = self.data.vocabulary.boundary
        symbols = symbols.scatter(1, ngrams.lengths[:, None] + 1, self.data.separator)
        position = torch.arange(longest + 2, device=symbols.device)
        padding_mask = position < ngrams.lengths[:, None] + 2
        return network.read_row(symbols, padding_mask, (position == 0).expand(count, -1))

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, " b"]:
        return self.contrast.contrasts(self.evaluation_reading(batch), batch).nats
