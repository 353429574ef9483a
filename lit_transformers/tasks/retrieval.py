"""Dense retrieval: compares the vector of a question with the vectors of passages (arXiv:2004.04906)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torchmetrics.utilities import dim_zero_cat

from lit_transformers.batch import (
    DataDescription,
    RetrievalBatch,
    RetrievalDescription,
    needed_mask,
    needed_source_mask,
)
from lit_transformers.config import PositiveFloat
from lit_transformers.heads.head import Head, HeadConfig, Representation
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.heads.passages import Passages, PassagesConfig
from lit_transformers.heads.pooling import FixedPooling
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig, ModelOutput, Network
from lit_transformers.tasks.pooled import require_readable
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig


class RetrievalConfig(TaskConfig, kind="retrieval"):
    """Encodes questions and passages separately, each into one vector. Training contrasts the passage that answers a
    question with the other passages of the batch on all ranks (DPR, arXiv:2004.04906, section 3.2). Measures rank it
    among all passages of its split.

    pooling: the vector of the first token, the mean over all real tokens, or the vector of the last token.
    similarity: of two vectors: cosine, or dot for their product. temperature: divides the similarities.
    towers: shared: one encoder reads questions and passages. separate: one encoder for each; both start from
    ``start.network``.
    """

    reads: ClassVar[type[DataDescription]] = RetrievalDescription

    pooling: FixedPooling = "first"
    similarity: Literal["cosine", "dot"] = "cosine"
    temperature: PositiveFloat = 0.05
    towers: Literal["shared", "separate"] = "shared"

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Retrieval:
        return Retrieval(self, model, data, training)

    def head(self) -> PassagesConfig:
        """Returns the head that compares questions with passages."""
        return PassagesConfig(pooling=self.pooling, similarity=self.similarity, temperature=self.temperature)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"passages": self.head()}

    def random_batch(self, data: DataDescription) -> RetrievalBatch:
        """Returns two questions and two passages of random symbols."""
        described = RetrievalDescription.of(data, self.kind)
        source = torch.randint(1, data.vocabulary.size, (2, described.source_length))
        inputs = torch.randint(1, data.vocabulary.size, (2, data.length))
        masks, rows = (torch.ones_like(source).bool(), torch.ones_like(inputs).bool()), torch.arange(2)
        return RetrievalBatch(source, masks[0], rows, inputs, masks[1], rows, rows, None, False, False)


STATES = ("questions", "question_numbers", "passages", "passage_numbers")
"""The states of the metric: the vectors of questions; their ordinals and the numbers of their answers; the vectors of
passages; their numbers. The last column of both tables of numbers is 0 at rows of padding."""


class RetrievalMetric(HeadsMetric):
    """Collects the vectors of all texts of a pass, and ranks every passage for every question at its end."""

    questions: list[Tensor]
    question_numbers: list[Tensor]
    passages: list[Tensor]
    passage_numbers: list[Tensor]

    def __init__(self, heads: Mapping[str, Head]) -> None:
        super().__init__(heads)
        for name in STATES:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def add_texts(self, questions: Float[Tensor, "b d"], passages: Float[Tensor, "b d"], batch: RetrievalBatch) -> None:
        """Adds the vectors of a batch, and ignores rows of padding."""
        self.update(batch.example[:0], {})
        real, real_passages = batch.source_padding_mask.any(dim=1), batch.padding_mask.any(dim=1)
        self.questions.append(questions)
        self.question_numbers.append(torch.stack([batch.example, batch.answer, real], dim=1))
        self.passages.append(passages)
        self.passage_numbers.append(torch.stack([batch.passage, real_passages], dim=1))

    def rows(self) -> Sequence[Any]:
        """Returns the rows of the questions of this rank, ranked among its passages; within ``compute``, of all
        ranks."""
        if len(self.questions) == 0:
            return []
        questions, of_questions, passages, of_passages = (dim_zero_cat(getattr(self, name)) for name in STATES)
        is_question, is_passage = of_questions[:, 2] > 0, of_passages[:, 1] > 0
        example, answer, questions = of_questions[is_question, 0], of_questions[is_question, 1], questions[is_question]
        number, passages = of_passages[is_passage, 0], passages[is_passage]
        if not len(example):
            return []
        example, first = first_of_each(example)
        number, places = first_of_each(number)
        head = cast("Passages", next(iter(self.heads.values())))
        columns = head.ranked(questions[first], answer[first], passages[places], number)
        return [self.row(*row) for row in zip(example.tolist(), columns.tolist(), strict=True)]


def first_of_each(numbers: Int[Tensor, " n"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """Returns the distinct numbers in ascending order, and the place of the first of each."""
    distinct, inverse = numbers.unique(return_inverse=True)
    places = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(distinct, len(numbers)).scatter_reduce(0, inverse, places, "amin")
    return distinct, first


class TextVector(NamedTuple):
    """The vector of a text. question: the ordinal of a question; None for a passage. passage: the number of the
    passage, or of the passage that answers the question."""

    question: int | None
    passage: int
    vector: tuple[float, ...]


class Retrieval(Task):
    """Trains encoders of questions and passages, and measures the ranks of the answers."""

    config: RetrievalConfig
    data: RetrievalDescription
    network: RowNetwork
    metric: RetrievalMetric
    parts: ClassVar[tuple[str, ...]] = ("passages",)

    def __init__(
        self, config: RetrievalConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError if the model cannot be built, or if its output cannot be pooled."""
        require_readable(model, config.kind, config.pooling)
        super().__init__(config, model, data, training)
        reader = require(model, RowModelConfig, f"{config.kind} reads")
        self.network = reader.build(data)
        self.passage_network = reader.build(data) if config.towers == "separate" else None
        for parameter in self.prediction_only():
            parameter.requires_grad_(False)
        self.add_heads(RetrievalMetric)

    def networks(self) -> list[Network]:
        return [self.network, *([] if self.passage_network is None else [self.passage_network])]

    def current_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights by their names. With separate towers, the weights of one network become those of both."""
        named = super().current_names(tensors)
        if self.passage_network is None:
            return named
        both = {f"passage_{name}": tensor for name, tensor in named.items() if name.startswith("network.")}
        return both | named

    def unused(self) -> list[nn.Parameter]:
        return [*super().unused(), *self.prediction_only()]

    def prediction_only(self) -> list[nn.Parameter]:
        """Returns the parameters of its networks that only predict symbols."""
        networks = cast("list[RowNetwork]", self.networks())
        return [parameter for network in networks for parameter in network.prediction_only()]

    @property
    def head(self) -> Passages:
        """The head that compares questions with passages."""
        return cast("Passages", self.heads["passages"])

    def other_flops(self, length: int) -> float:
        """Returns the FLOPs of reading a question of the longest length."""
        read = self.data.source_length
        return self.network.flops(read) - self.network.softmax_flops(read)

    def read(self, network: RowNetwork, batch: RetrievalBatch) -> Representation:
        """Runs the network on the questions, and the passage network, or the same network if towers are shared, on the
        passages. The part "passages" holds the last vectors of the passages."""
        return read_texts(network, self.passage_network or network, batch)

    @property
    def passage_reader(self) -> RowNetwork:
        """The network that reads passages in evaluation."""
        reader: RowNetwork = self.passage_network or self.evaluator()
        return reader

    def validation_step(self, batch: RetrievalBatch, batch_index: int) -> None:
        """Collects the vectors of the texts of a batch, which are compared at the end of the pass."""
        self.metric.add_texts(*self.head.vectors_of(self.evaluation_reading(batch), batch), batch)

    def predict_step(self, batch: RetrievalBatch, batch_index: int) -> list[TextVector]:
        """Returns the vectors of the questions and passages of a batch."""
        questions, passages = self.head.vectors_of(self.evaluation_reading(batch), batch)
        real, real_passages = batch.source_padding_mask.any(dim=1), batch.padding_mask.any(dim=1)
        rows = zip(batch.example[real].tolist(), batch.answer[real].tolist(), questions[real].tolist(), strict=True)
        read = zip(batch.passage[real_passages].tolist(), passages[real_passages].tolist(), strict=True)
        return [TextVector(example, answer, tuple(vector)) for example, answer, vector in rows] + [
            TextVector(None, number, tuple(vector)) for number, vector in read
        ]

    def evaluation_output(self, batch: RetrievalBatch) -> Float[Tensor, "b d"]:
        return self.head.vectors_of(self.evaluation_reading(batch), batch)[0]


def read_texts(questions: RowNetwork, passages: RowNetwork, batch: RetrievalBatch) -> Representation:
    """Runs one network on the questions of a batch, and one on its passages. The part "passages" holds the last vectors
    of the passages."""
    source = read_text(questions, batch.source, needed_source_mask(batch))
    read = read_text(passages, batch.inputs, needed_mask(batch))
    return Representation(
        questions, source.hidden, aux=read.aux, source_aux=source.aux, parts={"passages": read.hidden}
    )


def read_text(
    network: RowNetwork, symbols: Int[Tensor, "n t"], padding_mask: Bool[Tensor, "n t"] | None
) -> ModelOutput:
    """Runs a network on texts (n, t), with the first token of each marked."""
    marked = torch.zeros_like(symbols, dtype=torch.bool)
    marked[:, 0] = True
    return network.read_row(symbols, padding_mask, marked if padding_mask is None else marked & padding_mask)


@torch.no_grad()
def retrieval_scores(
    network: RowNetwork, batches: Iterable[RetrievalBatch], config: RetrievalConfig | None = None
) -> dict[str, float]:
    """Returns the measures of retrieval by one network that reads questions and passages: mrr, hit_1, hit_5, nats.

    batches: a pass over a split, ``RetrievalData.evaluation_dataloader(split)``. config: pooling, similarity and
    temperature; by default ``RetrievalConfig()``. The network's mode, training or evaluation, is restored.
    """
    head = Passages((config or RetrievalConfig()).head())
    metric, device = RetrievalMetric({"passages": head}), next(network.parameters()).device
    training = network.training
    network.eval()
    for batch in batches:
        parts: dict[str, Any] = batch._asdict()
        tensors: dict[str, Any] = {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
        moved = batch._replace(**tensors)
        metric.add_texts(*head.vectors_of(read_texts(network, network, moved), moved), moved)
    network.train(training)
    return metric.compute()
