"""Permutation language modelling with partial prediction (XLNet, Yang et al. 2019, arXiv:1906.08237, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription, needed_mask
from lit_transformers.config import ConfigError, Plain, Positive, PositiveFloat
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.heads.hidden_symbols import HIDDEN, HiddenSymbols, HiddenSymbolsConfig, hidden_positions
from lit_transformers.heads.predicted_positions import at_predictions
from lit_transformers.heads.relation import RelationConfig
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.models.capabilities import OrderedOutput, OrderedRows, RowModelConfig, RowNetwork
from lit_transformers.models.model import ModelConfig
from lit_transformers.records.measure import Measure
from lit_transformers.stacks.block import add_losses
from lit_transformers.tasks.counter_based import random_numbers, scrambled
from lit_transformers.tasks.masked_lm import MaskedLMConfig, MaskedMetric, two_sided, without_order
from lit_transformers.tasks.pair_metric import refuse_pairs
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig

Order = Literal["targets", "all", "none"]
Objective = Literal["permutation", "denoising"]


class PermutationLMConfig(TaskConfig, kind="permutation_lm"):
    """The symbols that the data choose are predicted one after another in a random order of their row, each from those
    before it, as the last of that order: a share 1/K of them is ``data.noise.rate`` (arXiv:1906.08237, section 2.3).

    Nothing is hidden: where the data put [MASK] or another symbol, the original one is read. The order is a function of
    a row's ordinal and of the symbols chosen in it. Special symbols are never predicted and belong to the context.

    order: targets: symbols that are not predicted see each other and are seen by all, as in the authors' code, so that
    only the predicted ones are in order. all: those before them are in order too, as in the paper's equation 5. none:
    a predicted symbol sees those that are not predicted alone, in its segment and in memory, as in masked language
    modelling.
    measured: the order in evaluation; None: as in training. By none the predictions of a masked language model, which
    see as much, can be compared: of another order, memory holds the symbols that were
    predicted in the segments before.
    objective: denoising: the symbols are hidden as the data say, and predicted from the stream that reads their
    replacements, as in masked language modelling (DAE of table 6), in the same segments and with the same memory.
    segment_length: number of symbols in the segments in which rows are read, each with the memory of those before it,
    as in Transformer-XL (section 2.4); None: at once, without memory. No state outlives a row, so that rows stay
    independent.
    directions: both: half of the rows, by their ordinals, are read from the last segment to the first, so that memory
    holds the segments that follow, with distances of the other sign (bidirectional data, section 3.1).
    relation_weight: of the loss of the relation of two segments, where the data ask for it.
    """

    reads: ClassVar[type[DataDescription]] = RowDescription

    order: Order = "targets"
    measured: Order | None = None
    objective: Objective = "permutation"
    segment_length: Positive | None = None
    directions: Literal["forward", "both"] = "forward"
    relation_weight: PositiveFloat = 1.0

    def conflicts(self) -> Iterator[str]:
        if self.objective == "denoising" and (self.order != "targets" or self.measured is not None):
            yield "denoising predicts in no order; leave order and measured out"
        if self.directions == "both" and self.segment_length is None:
            yield "a row that is read at once is the same in both directions; set segment_length"

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> PermutationLM:
        return PermutationLM(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        heads: dict[str, HeadConfig] = {"symbols": HiddenSymbolsConfig()}
        if RowDescription.of(data, self.kind).relations:
            heads["relation"] = RelationConfig(weight=self.relation_weight)
        return heads

    def segments(self, length: int) -> list[tuple[int, int]]:
        """Returns the beginning and the end of each segment of a row of ``length`` symbols."""
        edges = [*range(0, length, self.segment_length or length), length]
        return [*pairwise(edges)]

    def random_batch(self, data: DataDescription) -> RowBatch:
        return MaskedLMConfig().random_batch(data)

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        in_order = "" if self.measured_order == "none" else f" in order {self.measured_order}"
        return {
            name: Measure(f"{HIDDEN}{in_order}", measure.goal) if measure.unit == HIDDEN else measure
            for name, measure in super().measures(data).items()
        }

    def protocol(self) -> dict[str, Plain]:
        return {"order": self.measured_order, "segment_length": self.segment_length, "directions": self.directions}

    @property
    def measured_order(self) -> Order:
        """The order in evaluation."""
        return "none" if self.objective == "denoising" else self.measured or self.order


class PermutationLM(Task):
    """Trains and measures a network that predicts symbols in random orders of their rows."""

    config: PermutationLMConfig
    network: RowNetwork
    data: RowDescription
    former_names: ClassVar[Mapping[str, str]] = {"relation_head.": "heads.relation.map."}

    def __init__(
        self,
        config: PermutationLMConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or predicts in no order, or where the data have minimal
        pairs, their own order, or positions that begin again."""
        reader = predicting_in_order(model, config.kind)
        super().__init__(config, model, data, training)
        rows = RowDescription.of(data, config.kind)
        refuse_pairs(rows, config.kind)
        if rows.ordered or rows.restarts:
            reason = "draws its own order for positions as they stand; drop data.attention_masks and data.restart"
            raise ConfigError(f"{config.kind} {reason}", "task")
        network = reader.build(data)
        self.network = without_order(network) if config.objective == "denoising" else network
        self.add_heads(MaskedMetric)

    def other_flops(self, length: int) -> float:
        """Returns those of both streams in all segments, beyond one pass over the row at once."""
        flops = -self.network.flops(length)
        for start, stop in self.config.segments(length):
            flops += self.network.flops(stop - start, start)
            if self.config.objective == "permutation":
                predictions = round(self.data.predictions * (stop - start) / length)
                flops += self.network.in_order_flops(stop - start, predictions, start)
        return flops

    def training_reading(self, batch: RowBatch) -> Representation:
        return self.read(self.network, batch, self.config.order)

    def evaluation_reading(self, batch: RowBatch) -> Representation:
        return self.read(self.evaluator(), batch, self.config.measured_order)

    def read(self, network: RowNetwork, batch: RowBatch, order: Order = "targets") -> Representation:
        """Runs a network on a batch. Its hidden vectors stand at the positions of predictions, zero elsewhere; the part
        "content" represents every symbol."""
        output = self.ordered(network, batch, order)
        return Representation(network, output.hidden, aux=output.aux, parts={"content": output.content})

    def ordered(self, network: RowNetwork, batch: RowBatch, order: Order) -> OrderedOutput:
        """Runs a network on a batch in an order of its rows."""
        scored, rows = batch.targets != IGNORED, ordered_rows(batch, order)
        if self.config.objective == "denoising":
            rows = rows._replace(symbols=batch.inputs, places=torch.zeros_like(rows.places))
        elif order == "none":  # nobody sees them: neither their segment nor, in memory, those that are read after it
            rows = rows._replace(padding_mask=batch.padding_mask & ~scored, unbroken=0)
        if self.config.directions == "forward":
            return self.read_segments(network, rows, scored, batch.most_targets)
        backward, aux = scrambled(batch.example) & 1, dict[str, Tensor]()
        hidden, content = [], []
        turned, count = backward.argsort(stable=True), int(backward.sum())  # the one wait of a device
        for index, is_backward in zip(turned.split([len(backward) - count, count]), (False, True), strict=True):
            if len(index):
                part = each(rows, partial(torch.index_select, dim=0, index=index))
                output = self.read_segments(network, part, scored[index], batch.most_targets, is_backward)
                hidden.append(output.hidden)
                content.append(output.content)
                aux = add_losses(aux, output.aux)
        places = turned.argsort()
        return OrderedOutput(torch.cat(hidden)[places], torch.cat(content)[places], None, aux)

    def read_segments(
        self,
        network: RowNetwork,
        rows: OrderedRows,
        scored: Bool[Tensor, "b t"],
        most: int | None,
        backward: bool = False,
    ) -> OrderedOutput:
        """Runs a network on rows, segment by segment, from the last one to the first if ``backward``. Where segments
        begin does not depend on padding. most: ``RowBatch.most_targets``."""
        state, aux, is_denoising = None, dict[str, Tensor](), self.config.objective == "denoising"
        most = 0 if is_denoising else most
        hidden, content = [], []
        for start, stop in self.config.segments(scored.size(1))[:: -1 if backward else 1]:
            segment = each(rows, partial(torch.narrow, dim=1, start=start, length=stop - start))
            chosen = scored[:, start:stop] & (not is_denoising)
            if backward:
                segment, chosen = each(segment, partial(torch.flip, dims=[1])), chosen.flip(1)
            at = at_predictions(chosen, most)
            output = network.read_in_order(segment._replace(at=at, backward=backward), state)
            state, aux = output.state, add_losses(aux, output.aux)
            places = at[..., None].expand_as(output.hidden)
            represented = torch.zeros_like(output.content).scatter(1, places, output.hidden.to(output.content.dtype))
            hidden.append(represented.flip(1) if backward else represented)
            content.append(output.content.flip(1) if backward else output.content)
        of_rows = [torch.cat(parts[:: -1 if backward else 1], dim=1) for parts in (hidden, content)]
        return OrderedOutput(of_rows[1] if is_denoising else of_rows[0], of_rows[1], state, aux)

    def evaluation_output(self, batch: RowBatch) -> Float[Tensor, "n v"]:
        head, positions = cast("HiddenSymbols", self.heads["symbols"]), hidden_positions(batch)
        return positions.scored_alone(head.log_probabilities(self.evaluation_reading(batch), positions))


def predicting_in_order(model: ModelConfig, task: str) -> RowModelConfig:
    """Returns the model. Raises ConfigError where it reads no whole rows, or has no stream that predicts in an order of
    them; ``task`` needs it."""
    reader = two_sided(model, task)
    if not reader.predicts_in_order:
        raise ConfigError(f"{task} predicts in an order of each row; set it to learned", "model.query_stream")
    return reader


def ordered_rows(batch: RowBatch, order: Order) -> OrderedRows:
    """Returns the original symbols of a batch with the order of each row."""
    scored = batch.targets != IGNORED
    symbols = torch.where(scored, batch.targets, batch.inputs)
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = batch.padding_mask[:, 0]
    places, at = places_of(batch, scored, order), at_predictions(scored, batch.most_targets)
    rows = OrderedRows(symbols, places, at, needed_mask(batch), first, batch.segments)
    return rows if batch.padded else rows._replace(unbroken=EVERYTHING)


def each(rows: OrderedRows, change: Callable[[Tensor], Tensor]) -> OrderedRows:
    """Returns rows with a change of each of their tensors but ``at``, which is to be set anew."""
    symbols, places, marked = (change(part) for part in (rows.symbols, rows.places, rows.marked))
    padding_mask, segments = (None if part is None else change(part) for part in (rows.padding_mask, rows.segments))
    rows = rows._replace(symbols=symbols, places=places, at=symbols, marked=marked)
    return rows._replace(padding_mask=padding_mask, segments=segments)


def places_of(batch: RowBatch, scored: Bool[Tensor, "b t"], order: Order) -> Int[Tensor, "b t"]:
    """Returns the place of each symbol in the order of its row, those that are predicted last."""
    if order == "none":
        return scored.long()
    chance = random_numbers(batch.example, scored)
    shuffled = chance.argsort(dim=1, stable=True).argsort(dim=1)
    places = (shuffled + scored * scored.size(1)).argsort(dim=1).argsort(dim=1)
    if order == "all":
        return places
    return torch.where(scored, places - (~scored).sum(dim=1, keepdim=True) + 1, 0)
