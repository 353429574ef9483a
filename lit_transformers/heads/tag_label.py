"""Predicts a tag for each word of a row, and scores the entities that the tags spell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import IGNORED, LABEL, DataDescription, LabelledBatch, LabelledDescription, WordTagLabels
from lit_transformers.config import Dropout, Fraction
from lit_transformers.entities import EntityRules, entities_of_words
from lit_transformers.heads.head import HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.teacher import TEACHER, TaughtHead, divergence
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.scores import ENTITY_SCORES, entity_score

WordVector = Literal["first", "mean", "last"]


class TagLabelConfig(HeadConfig, kind="tag_label"):
    """A softmax over the tags of the data for each word, on one vector of the word.

    word: the vector of its first piece (arXiv:1810.04805, section 5.3), the mean over its pieces, or the vector of its
    last piece. dropout: of that vector.
    """

    reads: ClassVar[Reads] = LabelledDescription

    word: WordVector = "first"
    dropout: Annotated[Fraction, Dropout] = 0.0

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> TagLabel:
        return TagLabel(self, model.dim, self.labels(data))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        of_words = minimized("nats", per="word") | maximized("accuracy", per="word")
        return of_words | (maximized(*ENTITY_SCORES, per="entity") if self.labels(data).scheme else {})

    def labels(self, data: DataDescription) -> WordTagLabels:
        """Returns the tags of the data. Raises ConfigError for data without tags of words."""
        return LabelledDescription.of(data, self.kind).labels_of(LABEL, WordTagLabels, self.kind)


class TaggedWords(NamedTuple):
    """The predicted tags of one example. document: its ordinal. probabilities: for each word the probability of each
    tag; None for a word that was cut from the row."""

    document: int
    probabilities: tuple[tuple[float, ...] | None, ...]


class TagLabel(TaughtHead):
    """Measures nats and accuracy per word and, if the tags spell entities, precision, recall and F1 of entities.

    A word that was cut from its row has no prediction: it counts as wrong, as the tag O, and with the nats of a uniform
    distribution. Training ignores it.

    Scores of entities equal seqeval's strict mode (1.2.2): an entity is right if its first word, its last word and its
    type are right. ``unseen_f1`` and the other unseen scores count only entities that are new in evaluation (as
    Derczynski et al. 2017, WNUT17): no entity of training, of any type, has exactly the same words. An entity of more
    than 62 words counts as new.
    """

    columns: ClassVar[Mapping[str, type]] = {
        "nats": float,
        "tokens": int,
        "bytes": int,
        "correct": int,
        "cut": int,
        "right_entities": int,
        "predicted_entities": int,
        "entities": int,
        "right_unseen": int,
        "predicted_unseen": int,
        "unseen": int,
    }

    def __init__(self, config: TagLabelConfig, dim: int, labels: WordTagLabels) -> None:
        super().__init__(config)
        self.word, self.tags = config.word, len(labels.names)
        self.rules = None if labels.scheme is None else EntityRules(labels.names, labels.scheme)
        self.map = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(dim, self.tags))

    def outputs(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b w c"]:
        """Returns the logits of the tags of each word; the logits of words without a token are arbitrary."""
        vectors = word_vectors(reading.hidden, words_in(batch), self.word)
        return full_precision(self.map(vectors))

    def nats(self, logits: Float[Tensor, "b w c"], batch: LabelledBatch) -> Float[Tensor, "b w"]:
        """Returns -log p of the right tag of each word; 0 for padding and for words without a token."""
        tags, has_token = batch.labels[..., 0], words_in(batch).any(dim=2)
        nats = -logits.log_softmax(dim=-1).gather(2, tags.clamp(min=0)[..., None])[..., 0]
        return nats.masked_fill(~has_token | (tags == IGNORED), 0.0)

    def divergence(
        self, outputs: Float[Tensor, "b w c"], taught: Float[Tensor, "b w c"], temperature: float
    ) -> Float[Tensor, "b w"]:
        return divergence(outputs, taught, temperature)

    def counted(self, batch: LabelledBatch) -> Bool[Tensor, "b w"]:
        """Returns the words that have a tag and a token."""
        return (batch.labels[..., 0] != IGNORED) & words_in(batch).any(dim=2)

    def targets(self, batch: LabelledBatch) -> Int[Tensor, ""]:
        return self.counted(batch).sum()

    def loss(self, reading: Representation, batch: LabelledBatch) -> HeadLoss:
        outputs, teacher = self.outputs(reading, batch), reading.parts.get(TEACHER)
        loss = HeadLoss.of(self.nats(outputs, batch))
        if teacher is None:
            return loss
        return HeadLoss(teacher.joined(loss.total, self, outputs, self.counted(batch)), loss.nats.detach())

    def sums(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b 11"]:
        logits, tags = self.outputs(reading, batch), batch.labels[..., 0]
        has_token, is_word = words_in(batch).any(dim=2), tags != IGNORED
        is_cut = is_word & ~has_token
        nats = self.nats(logits, batch).double() + is_cut * math.log(self.tags)
        predicted = torch.where(has_token, logits.argmax(dim=-1), IGNORED)
        columns = [nats, is_word, torch.zeros_like(is_word), (predicted == tags) & is_word, is_cut]
        if self.rules is None:
            columns += [torch.zeros_like(is_word)] * 6
        else:
            columns += entities_of_words(self.rules, predicted, batch.labels)
        return torch.stack([column.double().sum(dim=1) for column in columns], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        words = sum(sums["tokens"])
        if not words:
            return {}
        results = {"nats": math.fsum(sums["nats"]) / words, "accuracy": sum(sums["correct"]) / words}
        if self.rules is None:
            return results
        return results | {name: float(entity_score(name, sums).item()) for name in ENTITY_SCORES}


def words_in(batch: LabelledBatch) -> Bool[Tensor, "b w t"]:
    """Returns a mask of the tokens of each word of the labels."""
    assert batch.words is not None, "batches of LabelledDescription.of_words have words"
    numbers = torch.arange(1, batch.labels.size(1) + 1, device=batch.words.device)
    return batch.words[:, None, :] == numbers[:, None]


def word_vectors(
    hidden: Float[Tensor, "b t d"], words: Bool[Tensor, "b w t"], word: WordVector
) -> Float[Tensor, "b w d"]:
    """Returns one vector for each word, from a mask of its tokens. Words without a token get an arbitrary finite
    vector."""
    if word == "mean":
        total = words.to(hidden.dtype) @ hidden.masked_fill(~words.any(dim=1)[..., None], 0.0)
        return total / words.sum(dim=2, keepdim=True).clamp(min=1)
    place = torch.arange(words.size(2), device=words.device)
    if word == "first":
        place = torch.where(words, place, words.size(2) - 1).amin(dim=2)
    else:
        place = torch.where(words, place, 0).amax(dim=2)
    return hidden.gather(1, place[..., None].expand(-1, -1, hidden.size(2)))
