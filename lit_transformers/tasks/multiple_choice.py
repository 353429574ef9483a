"""Multiple choice: a network reads a question with each of its choices, and scores each choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple, cast

from jaxtyping import Float
from torch import Tensor

from lit_transformers.activations import Activation
from lit_transformers.batch import ChoiceLabels, DataDescription, LabelledBatch, LabelledDescription, Vocabulary
from lit_transformers.config import Dropout, Fraction
from lit_transformers.heads.choices import ChoiceScores, ChoiceScoresConfig
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.heads.pooling import FixedPooling
from lit_transformers.models.capabilities import LayerOutputs, RowNetwork
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.tasks.pooled import require_readable
from lit_transformers.training.config import TrainingConfig


class MultipleChoiceConfig(LabelledTaskConfig, kind="multiple_choice"):
    """A softmax over the choices of an example. Question and choice are one row, and one vector of the row gives the
    score of the choice (arXiv:1810.04805, section 4.4). Examples may have different numbers of choices.

    pooling: the vector of the first token, the mean over all real tokens, or the vector of the last token. hidden:
    activation after a linear map of this vector to the same width, such as tanh in BERT's pooler; with released weights
    for heads, the map starts from the released pooler. None: no map. dropout: of that vector.
    """

    pooling: FixedPooling = "first"
    hidden: Activation | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0

    def probe_data(self, vocabulary: Vocabulary, length: int) -> LabelledDescription:
        described = LabelledDescription.of(super().probe_data(vocabulary, length), self.kind)
        return replace(described, labels=ChoiceLabels(count=3))

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MultipleChoice:
        return MultipleChoice(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"choice": ChoiceScoresConfig(pooling=self.pooling, hidden=self.hidden, dropout=self.dropout)}


class ChoiceProbabilities(NamedTuple):
    """The prediction for one example: its ordinal, and the probability of each of its choices."""

    document: int
    probabilities: tuple[float, ...]


class MultipleChoice(LabelledTask):
    """Trains and measures a network that scores choices."""

    config: MultipleChoiceConfig
    former_names: ClassVar[Mapping[str, str]] = {"heads.relation.map.0.": "heads.choice.hidden."}

    def __init__(
        self,
        config: MultipleChoiceConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError if the model cannot be built, if its output cannot be pooled, or if the data have no
        choices."""
        require_readable(model, config.kind, config.pooling)
        super().__init__(config, model, data, training)
        self.add_heads()

    @property
    def choice_head(self) -> ChoiceScores:
        """The head that scores choices."""
        return cast("ChoiceScores", self.heads["choice"])

    def rows_read(self, batch: LabelledBatch) -> LabelledBatch:
        """Returns the rows of all choices."""
        return super().rows_read(rows_of_choices(batch))

    def combined(self, network: RowNetwork, batch: LabelledBatch, read: LayerOutputs) -> Representation:
        """Returns the input of the heads, of which ``hidden`` is (b, c, t, d)."""
        reading = super().combined(network, rows_of_choices(batch), read)
        return reading._replace(hidden=reading.hidden.unflatten(0, batch.inputs.shape[:2]))

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b c"]:
        return self.choice_head.outputs(self.evaluation_reading(batch), batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[ChoiceProbabilities]:
        """Returns the probabilities of the choices of each example; rows of padding are omitted."""
        real, counts = batch.padding_mask.flatten(1).any(dim=1), batch.padding_mask.any(dim=2).sum(dim=1)
        rows = (batch.example[real], counts[real], self.evaluation_output(batch).softmax(dim=1)[real])
        return [
            ChoiceProbabilities(document, tuple(probabilities[:count]))
            for document, count, probabilities in zip(*(row.tolist() for row in rows), strict=True)
        ]


def rows_of_choices(batch: LabelledBatch) -> LabelledBatch:
    """Returns a batch in which each choice of an example is a row."""
    rows = {name: getattr(batch, name) for name in ("inputs", "padding_mask", "marked", "segments")}
    apart: dict[str, Any] = {name: None if part is None else part.flatten(0, 1) for name, part in rows.items()}
    return batch._replace(**apart)
