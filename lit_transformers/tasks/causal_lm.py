"""Language modelling from left to right, over segments with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import DataDescription, LanguageDescription, TextBatch, needed_mask
from lit_transformers.config import PositiveFloat
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.heads.next_symbol import Counted, FutureSymbolConfig, LayerSymbolsConfig, NextSymbolConfig
from lit_transformers.host import reads_at_once
from lit_transformers.mixer import detach, empty_rows, join_rows, map_state, take_rows, tokens_held
from lit_transformers.models.capabilities import CausalModelConfig, CausalNetwork, require
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.stacks.carried import Carried
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.ranks import from_all_ranks


class CausalLMConfig(TaskConfig, kind="causal_lm"):
    """Every symbol of a text is predicted from those before it.

    loss: over every position; over the second half of each segment (arXiv:1901.02860, table 6, "half"); or at the last
    position alone, which is arXiv:1808.04444 without its multiple positions.
    intermediate: whether every layer predicts; layer l of N until l / 2N of training (arXiv:1808.04444, section 3.2).
    future: weights of the losses of targets further ahead, each with its own softmax; (0.5,) is the paper's
    next-but-one character (section 3.4).
    None of the added losses enters a reported number.
    """

    reads: ClassVar[type[DataDescription]] = LanguageDescription

    loss: Counted = "full"
    intermediate: bool = False
    future: tuple[PositiveFloat, ...] = ()

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> CausalLM:
        return CausalLM(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        heads: dict[str, HeadConfig] = {"symbols": NextSymbolConfig(loss=self.loss)}
        if self.intermediate:
            heads["layers"] = LayerSymbolsConfig(loss=self.loss)
        for steps, weight in enumerate(self.future, start=1):
            heads[f"future_{steps}"] = FutureSymbolConfig(steps=steps, weight=weight, loss=self.loss)
        return heads

    def random_batch(self, data: DataDescription) -> TextBatch:
        """Returns two lanes of random symbols in which no document begins or ends, after others such."""
        text = torch.randint(1, data.vocabulary.size, (2, data.length + 1))
        real = torch.ones(2, data.length, dtype=torch.bool)
        document, fresh = torch.zeros(2, data.length, dtype=torch.long), torch.zeros(2, dtype=torch.bool)
        return TextBatch(text[:, :-1], text[:, 1:], real, document, fresh, None, padded=False, unbroken=data.length)


class CausalLM(Task):
    """Trains and measures a language model.

    The state of the lanes, without gradient, is emptied in rows where a document starts. Validation begins with an
    empty state and does not change that of training. A checkpoint holds the state of the lanes of all ranks.
    """

    config: CausalLMConfig
    network: CausalNetwork
    former_names: ClassVar[Mapping[str, str]] = {
        f"future.{number}.": f"heads.future_{number + 1}.logits." for number in range(9)
    }

    def __init__(
        self, config: CausalLMConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, or the data are of another kind."""
        super().__init__(config, model, data, training)
        self.network = require(model, CausalModelConfig, "causal_lm trains").build(data)
        self.add_heads()
        self.state: Any = None
        self.loaded_state: Any = None
        self.evaluation_state: Any = None
        self.evaluation_lanes: Tensor | None = None

    def forward(self, symbols: Int[Tensor, "b t"], state: Any = None) -> ModelOutput:
        output: ModelOutput = self.network(symbols, state)
        return output

    def read(
        self, network: CausalNetwork, batch: TextBatch, state: Any = None, keep_layers: bool = False
    ) -> Representation:
        """Runs the network on one segment of the lanes, after the earlier tokens in ``state``. The new state is the
        reading's part "state"."""
        if state is not None and not batch.unbroken:
            state = empty_rows(state, batch.fresh)
        # Code is compiled for each number and for the absence of a mask, so there are few numbers, and always a mask.
        unbroken = min(batch.unbroken, network.remembered)
        unbroken = unbroken if unbroken >= tokens_held(state) else 0
        padding_mask = batch.padding_mask if self.training_config.compile else needed_mask(batch)
        memory = {"unbroken": unbroken} if unbroken else {}  # networks without attention to memory need not know it
        output: ModelOutput = network(batch.inputs, state, padding_mask, keep_layers, **memory)
        return Representation(network, output.hidden, output.layers, output.aux, parts={"state": detach(output.state)})

    def training_reading(self, batch: TextBatch) -> Representation:
        heads = [head for head in self.heads.values() if head.needs_layers and head.learns(self.progress)]
        reading = self.read(self.network, batch, self.state, keep_layers=bool(heads))
        self.state = reading.parts["state"]
        return reading

    def evaluation_reading(self, batch: TextBatch) -> Representation:
        reading = self.read(self.evaluator(), batch, self.evaluation_state)
        self.evaluation_state = reading.parts["state"]
        return reading

    def documents(self, batch: TextBatch) -> Int[Tensor, "b t"]:
        return batch.document

    def carried(self) -> Carried:
        return self.network.carried(self.data.length)

    def begin_evaluation(self) -> None:
        self.evaluation_state = self.evaluation_lanes = None

    def evaluation_output(self, batch: TextBatch) -> Float[Tensor, "b t d"]:
        return self.evaluation_reading(batch).hidden

    def of_open_lanes(self, batch: TextBatch) -> TextBatch:
        """Returns the rows of a batch whose lanes have not ended, and takes those that have out of the state: nothing
        follows the padding of a whole row. A device would have to be waited for, so all rows stay; so do those of a
        batch of padding, which a rank reads that has no document left."""
        if not reads_at_once(batch.padding_mask):
            return batch
        lanes = batch.padding_mask.any(dim=1).nonzero().squeeze(1)
        before = torch.arange(batch.padding_mask.size(0)) if self.evaluation_lanes is None else self.evaluation_lanes
        lanes = self.evaluation_lanes = lanes if len(lanes) else before
        if self.evaluation_state is not None and len(lanes) < len(before):
            self.evaluation_state = take_rows(self.evaluation_state, torch.searchsorted(before, lanes))
        inputs, targets, padding_mask, document, fresh = (part[lanes] for part in batch[:5])
        return batch._replace(inputs=inputs, targets=targets, padding_mask=padding_mask, document=document, fresh=fresh)

    def validation_step(self, batch: TextBatch, batch_index: int) -> None:
        super().validation_step(self.of_open_lanes(batch), batch_index)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["state"] = join_rows(from_all_ranks(map_state(Tensor.cpu, self.state)))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.loaded_state = checkpoint["state"]

    def on_train_start(self) -> None:
        """Takes the state of this rank's lanes out of the checkpoint's; the device of the network is known only now."""
        ranks = slice(self.trainer.global_rank, None, self.trainer.world_size)
        if self.loaded_state is not None:
            self.state = map_state(lambda part: part[ranks].to(self.device), self.loaded_state)
            self.loaded_state = None
