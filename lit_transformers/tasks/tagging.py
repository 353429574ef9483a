"""Tagging: predicts a tag for each word of a row, such as its part of speech or its place in a named entity."""

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
    """A softmax over tags for each word, on one vector of the word (arXiv:1810.04805, section 5.3). If the tags spell
    entities, the entities are scored as well.

    word: the vector of its first piece, the mean over its pieces, or the vector of its last piece. With a
    language_model choose last: only the last piece depends on the whole word. dropout: of that vector.
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
    """Trains and measures a network that predicts the tag of each word."""

    config: TaggingConfig

    def __init__(
        self,
        config: TaggingConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError if the model cannot be built or cannot be used for this task, or if the labels are not
        tags of words."""
        super().__init__(config, model, data, training)
        self.add_heads()

    @property
    def label_head(self) -> TagLabel:
        """The head that predicts the tags."""
        return cast("TagLabel", self.heads["label"])

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b w c"]:
        return self.label_head.outputs(self.evaluation_reading(batch), batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[TaggedWords]:
        """Returns the probabilities of the tags of every word of each example; rows of padding are omitted."""
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
