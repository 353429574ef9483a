"""Tagging: a tag for each word of a row, such as its part of speech or its place in a named entity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import (
    IGNORED,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    Vocabulary,
    WordTagLabels,
)
from lit_transformers.config import Dropout, Fraction
from lit_transformers.heads.head import HeadConfig
from lit_transformers.heads.tag_label import TaggedWords, TagLabel, TagLabelConfig, WordVector, words_in
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.training.config import TrainingConfig

PROBED = ("O", "B-x", "I-x")
"""The tags of random rows, for probes."""


class TaggingConfig(LabelledTaskConfig, kind="tagging"):
    """A softmax over tags for each word, from one vector of it (arXiv:1810.04805, section 5.3). Where tags spell
    entities, these are measured as well.

    word: the vector of its first piece, the mean over its pieces, or the vector of the last one, the only one that has
    seen the whole word if the network is a language_model. dropout: of that vector.
    """

    word: WordVector = "first"
    dropout: Annotated[Fraction, Dropout] = 0.0

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Tagging:
        return Tagging(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"label": TagLabelConfig(word=self.word, dropout=self.dropout)}

    def probe_data(self, vocabulary: Vocabulary, length: int) -> LabelledDescription:
        labels = WordTagLabels(names=PROBED, scheme="IOB2")
        return LabelledDescription(vocabulary=vocabulary, length=length, labels=labels)


class Tagging(LabelledTask):
    """Trains and measures a network with a head on one vector of each word."""

    config: TaggingConfig

    def __init__(
        self,
        config: TaggingConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or cannot be used for such an objective, or the labels are
        of another kind."""
        super().__init__(config, model, data, training)
        self.add_heads()

    @property
    def label_head(self) -> TagLabel:
        """The head that predicts the tags."""
        return cast("TagLabel", self.heads["label"])

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b w c"]:
        return self.label_head.outputs(self.evaluation_reading(batch), batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[TaggedWords]:
        """Returns the probabilities of the tags of every word of every example; rows of padding have none."""
        probabilities = self.evaluation_output(batch).softmax(dim=-1).tolist()
        has_token, is_word = words_in(batch).any(dim=2).tolist(), (batch.labels[..., 0] != IGNORED).tolist()
        rows = zip(batch.example.tolist(), batch.padding_mask.any(dim=1).tolist(), strict=True)
        return [
            TaggedWords(
                example,
                tuple(
                    tuple(own) if known else None
                    for own, known, there in zip(probabilities[row], has_token[row], is_word[row], strict=True)
                    if there
                ),
            )
            for row, (example, is_real) in enumerate(rows)
            if is_real
        ]
