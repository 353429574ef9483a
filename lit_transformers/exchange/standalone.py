"""A trained network with its head as modules, from symbols to named outputs, for programs outside of this suite: one
module, or of an encoder-decoder one for each side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import (
    ClassLabels,
    ClassSetLabels,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    MixedDescription,
    PairDescription,
    Vocabulary,
    WordTagLabels,
)
from lit_transformers.config import ConfigError
from lit_transformers.exchange.fine_tuned import head_of_import, head_of_task
from lit_transformers.exchange.transfer import family_of, positions_of, symbols_of_weights, without_adapters
from lit_transformers.heads.answer_span import AnswerSpan
from lit_transformers.heads.head import Head, Representation
from lit_transformers.heads.hidden_symbols import HiddenSymbols
from lit_transformers.heads.pooled import PooledHead
from lit_transformers.heads.tag_label import TagLabel
from lit_transformers.mixer import MixerConfig
from lit_transformers.models.capabilities import CausalNetwork, PairNetwork, RowNetwork
from lit_transformers.models.model import ModelConfig
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.evaluate import load, require_numbers
from lit_transformers.runs.starting_weights import StartingWeights, start_from
from lit_transformers.tasks import Task, TaskConfig
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.tasks.labelled import LabelledTask, marks
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.training.config import TrainingConfig

__all__ = [
    "ProgramInputs",
    "Standalone",
    "StandaloneDecoder",
    "StandaloneEncoder",
    "StandaloneModule",
    "standalones_of",
]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""The names of the inputs, as in other programs: symbols, 1 at real symbols and 0 at padding, and segments."""
DECODER_INPUTS = ("input_ids", "encoder_hidden_states", "encoder_attention_mask")
"""The names of a decoder's inputs: symbols of a target, and the encoded source with 1 at its real symbols."""
ROWS = ("batch", "length")
"""The names of the open dimensions of rows."""
LONGEST = 512
"""The longest row of a network whose weights state none."""


class ProgramInputs(NamedTuple):
    """The inputs of a network: symbols (b, t); 1 at real symbols and 0 at padding, which stands at the end of a row;
    and the number of each symbol's segment, of a network that reads segments."""

    symbols: Int[Tensor, "b t"]
    real: Int[Tensor, "b t"]
    segments: Int[Tensor, "b t"] | None = None

    def given(self) -> tuple[Tensor, ...]:
        """Returns the inputs that there are."""
        return (self.symbols, self.real) if self.segments is None else (self.symbols, self.real, self.segments)


class StandaloneModule(nn.Module, ABC):
    """A part of a network as a module, in evaluation, that becomes one program. Each row is read without memory of
    other rows.

    file: the name of its file. inputs, outputs: their names; of each input, those of its open dimensions. longest:
    symbols of the longest row. symbols: size of the vocabulary. per_token: whether outputs belong to tokens, so that
    those at padding mean nothing.
    """

    file: str
    inputs: Mapping[str, tuple[str, str]]
    outputs: tuple[str, ...]
    longest: int
    symbols: int
    per_token: bool = True

    @abstractmethod
    def random_inputs(self, count: int, length: int) -> tuple[Tensor, ...]:
        """Returns inputs of random rows: the first as long as the shape, the others padded by random symbols or
        vectors, which a program has to ignore."""

    @abstractmethod
    def compared(self, outputs: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> Iterator[Tensor]:
        """Yields the part of each output that is compared: all of it, or the outputs of real tokens."""


class Standalone(StandaloneModule):
    """A network with its head. A network that predicts symbols returns the logits of the symbol at each token, or after
    it where it is causal, and the last vectors; without a head of labels any other one returns these alone."""

    file = "model"

    def __init__(self, task: Task, longest: int, predicts: bool = True) -> None:
        """predicts: whether the part that predicts symbols, if there is one, is trained."""
        super().__init__()
        self.network, self.longest, self.symbols = task.network, longest, task.data.vocabulary.size
        self.combination = task.combination if isinstance(task, LabelledTask) else None
        self.read: Callable[..., Representation] | None = task.read if isinstance(task, LabelledTask) else None
        self.head = head_of(task)
        self.per_token = not isinstance(self.head, PooledHead)
        self.predicts = predicts and predicts_symbols(task)
        of_symbols = ("logits", "last_hidden_state") if self.predicts else ("last_hidden_state",)
        self.outputs = {AnswerSpan: ("start_logits", "end_logits"), type(None): of_symbols}.get(
            type(self.head), ("logits",)
        )
        self.eval().float().requires_grad_(False)
        self.inputs = dict.fromkeys(INPUTS[: 3 if self.reads_segments() else 2], ROWS)

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"],
        token_type_ids: Int[Tensor, "b t"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Returns the tensors that ``outputs`` names: of rows (b, o), or of their tokens (b, t, ...)."""
        batch = labelled(ProgramInputs(input_ids, attention_mask, token_type_ids))
        if self.read is None:
            hidden = self.hidden(batch)
            return (self.symbol_logits(hidden), hidden) if self.predicts else (hidden,)
        reading = self.read(self.network, batch)
        match self.head:
            case PooledHead():
                return (self.head.outputs(reading, batch),)
            case AnswerSpan():
                return self.head.logits(reading).unbind(dim=-1)
            case TagLabel():
                return (self.head.map(reading.hidden),)
        return (reading.hidden,)

    def hidden(self, batch: LabelledBatch) -> Float[Tensor, "b t d"]:
        """Returns the last vectors of a network without a head of labels."""
        network, mask = self.network, batch.padding_mask
        if isinstance(network, RowNetwork):
            return network.read_row(batch.inputs, mask, marks(batch), batch.segments).hidden
        assert isinstance(network, CausalNetwork)
        return network(batch.inputs, None, mask).hidden

    def symbol_logits(self, hidden: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """Returns the logits of all symbols, given the last vectors; of an adaptive softmax log probabilities."""
        vectors = self.network.predict(hidden) if isinstance(self.network, RowNetwork) else hidden
        return self.network.tokens.scores(vectors)

    @torch.no_grad()
    def reads_segments(self) -> bool:
        """Whether segments change the outputs of a row of two texts."""
        tables = [table for name, table in self.network.named_parameters() if name == "segments.weight"]
        if not isinstance(self.network, RowNetwork) or any(len(table) < 2 for table in tables):
            return False
        symbols = torch.arange(min(6, self.longest))[None] % self.symbols
        second = (symbols >= symbols.size(1) // 2).long()
        one, two = (self(symbols, torch.ones_like(symbols), own) for own in (torch.zeros_like(second), second))
        return not all(torch.equal(*both) for both in zip(one, two, strict=True))

    def random_inputs(self, count: int, length: int) -> tuple[Tensor, ...]:
        symbols, real = random_rows(self.symbols, count, length)
        places, lengths = torch.arange(length), real.sum(dim=1, keepdim=True)
        segments = ((places >= (lengths + 1) // 2) & (places < lengths)).long()
        return ProgramInputs(symbols, real, segments if len(self.inputs) > 2 else None).given()

    def compared(self, outputs: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> Iterator[Tensor]:
        for output in outputs:
            yield output[given[1].bool()] if self.per_token else output


class StandaloneEncoder(StandaloneModule):
    """The encoder of an encoder-decoder: it returns the vectors of sources."""

    file, inputs, outputs = "encoder_model", dict.fromkeys(INPUTS[:2], ROWS), ("last_hidden_state",)

    def __init__(self, network: PairNetwork, symbols: int, longest: int) -> None:
        super().__init__()
        self.network, self.symbols, self.longest = network, symbols, longest
        self.eval().float().requires_grad_(False)

    def forward(self, input_ids: Int[Tensor, "b s"], attention_mask: Int[Tensor, "b s"]) -> tuple[Tensor, ...]:
        return (self.network.encode(input_ids, attention_mask.bool()).hidden,)

    def random_inputs(self, count: int, length: int) -> tuple[Tensor, ...]:
        return random_rows(self.symbols, count, length)

    def compared(self, outputs: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> Iterator[Tensor]:
        return (output[given[1].bool()] for output in outputs)


class StandaloneDecoder(StandaloneModule):
    """The decoder of an encoder-decoder: it reads the beginnings of targets, all as long as each other, and returns the
    logits of the symbol after each of their symbols, given the vectors of sources (b, s, d)."""

    file, outputs = "decoder_model", ("logits",)
    inputs: Mapping[str, tuple[str, str]] = dict.fromkeys(DECODER_INPUTS, ROWS) | {"input_ids": ("batch", "symbols")}

    def __init__(self, network: PairNetwork, symbols: int, longest: int, longest_source: int) -> None:
        super().__init__()
        self.network, self.symbols, self.longest, self.longest_source = network, symbols, longest, longest_source
        self.dim = int(network.tokens.embed(torch.zeros(1, 1, dtype=torch.long)).size(-1))
        self.eval().float().requires_grad_(False)

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        encoder_hidden_states: Float[Tensor, "b s d"],
        encoder_attention_mask: Int[Tensor, "b s"],
    ) -> tuple[Tensor, ...]:
        output = self.network.decode(input_ids, encoder_hidden_states, encoder_attention_mask.bool())
        return (self.network.tokens.scores(output.hidden),)

    def random_inputs(self, count: int, length: int) -> tuple[Tensor, ...]:
        """Sources are about half as long as the targets."""
        symbols, _ = random_rows(self.symbols, count, length)
        _, real = random_rows(self.symbols, count, min(self.longest_source, length // 2 + 1))
        generator = torch.Generator().manual_seed(length)
        return symbols, torch.randn(*real.shape, self.dim, generator=generator), real

    def compared(self, outputs: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> Iterator[Tensor]:
        return iter(outputs)


def random_rows(vocabulary: int, count: int, length: int) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Returns random symbols, and 1 at the real ones: the first row has no padding."""
    generator = torch.Generator().manual_seed(length)
    symbols = torch.randint(vocabulary, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    lengths[0] = length
    return symbols, (torch.arange(length) < lengths).long()


def labelled(rows: ProgramInputs) -> LabelledBatch:
    """Returns rows as a batch without labels."""
    nothing = torch.zeros_like(rows.symbols[:, 0])
    return LabelledBatch(rows.symbols, rows.real.bool(), nothing, None, nothing, None, segments=rows.segments)


def predicts_symbols(task: Task) -> bool:
    """Whether a task predicts the symbol at each token of a row, or the one after it, from the last vectors."""
    return type(task) is CausalLM or (type(task) is MaskedLM and type(task.symbols) is HiddenSymbols)


def head_of(task: Task) -> Head | None:
    """Returns the first head of a task that predicts labels; None of another task. Raises ConfigError for a head whose
    outputs have no names in other programs."""
    if not isinstance(task, LabelledTask):
        return None
    head = next(iter(task.heads.values()))
    if not isinstance(head, PooledHead | AnswerSpan | TagLabel):
        raise ConfigError(
            "has no outputs that other programs name; choose --to safetensors", f"task: {task.config.kind}"
        )
    return head


def standalones_of(source: Path, weights: StartingWeights) -> tuple[list[StandaloneModule], list[str]]:
    """Returns the network of a run's checkpoint or of an import with its head, or both sides of an encoder-decoder, and
    a line for each difference. Adapters of linear maps are merged into their maps. Raises ConfigError, which names the
    part, where an export cannot have it.

    weights: those of the source.
    """
    if source.is_file() and source.suffix != ".safetensors":
        task, notes = task_of_run(source)
        return modules_of(task, task.data.length), notes
    weights, notes = without_adapters(weights)
    require_exportable(weights.model)
    task, predicts = task_of_import(weights)
    return modules_of(task, longest_of(weights), predicts), notes


def modules_of(task: Task, longest: int, predicts: bool = True) -> list[StandaloneModule]:
    """Returns the modules of a task's network: one, or two of an encoder-decoder. Arguments are those of
    ``Standalone``."""
    network = task.network
    if not isinstance(network, PairNetwork):
        return [Standalone(task, longest, predicts)]
    pairs = PairDescription.of(task.data, "export")
    return [
        StandaloneEncoder(network, pairs.source.size, pairs.source_length),
        StandaloneDecoder(network, pairs.vocabulary.size, longest, pairs.source_length),
    ]


def task_of_run(source: Path) -> tuple[Task, list[str]]:
    """Returns the task of a run's checkpoint, with adapters merged into their maps, and a line for these."""
    task, config, _ = load(source)
    require_numbers(task, source)
    require_readable(task, config)
    plain = plain_model(config.model)
    if plain == config.model:
        return task, []
    adapter = config.model.adapter
    tensors = task.state_dict() if adapter is None else adapter.merged(task.state_dict())
    merged = config.measured_task.build(plain, task.data, config.training)
    merged.load_state_dict(tensors)
    return merged, [] if adapter is None else [f"adapter: {adapter.kind}, merged into the weights"]


def plain_model(model: ModelConfig) -> ModelConfig:
    """Returns the model of the network that computes the same without adapters, on padded rows."""
    return model.override({"adapter": None, "unpadded": False})


def task_of_import(weights: StartingWeights) -> tuple[Task, bool]:
    """Returns the task of imported weights, with their fine-tuned head, or else that of pretraining, and whether they
    hold the part that predicts symbols. Raises ConfigError for a head without weights."""
    vocabulary = Vocabulary(size=symbols_of_weights(weights), boundary=0, unit="piece", byte_lengths=None)
    head, length = head_of_import(weights), longest_of(weights)
    config = family_of(weights.model).task if head is None else TaskConfig.from_dict(weights.task)
    data = config.probe_data(vocabulary, length)
    data = data if head is None else with_labels(data, head.labels, weights)
    task = config.build(plain_model(weights.model), data, TrainingConfig()).eval()
    lines = start_from(task, {"network": weights} | ({} if head is None else {"heads": weights}))
    if head is not None and (anew := [line for line in lines if line.startswith("heads.") and "starts anew" in line]):
        raise ConfigError(f"lacks the weights of its head: {anew[0]}", weights.place)
    return task, not any(line.startswith("network.") and "starts anew" in line for line in lines)


def with_labels(data: DataDescription, names: list[str] | None, weights: StartingWeights) -> DataDescription:
    """Returns a description whose labels are those of imported weights."""
    described = LabelledDescription.of(data, "export")
    match described.labels:
        case ClassLabels() | ClassSetLabels():
            name, _ = head_of_task(weights.task)
            count = len(weights.tensors[f"heads.{name}.map.1.bias"])
            return replace(described, labels=replace(described.labels, count=count))
        case WordTagLabels():
            return replace(described, labels=WordTagLabels(names=tuple(names or ()), scheme=None))
    return described


def longest_of(weights: StartingWeights) -> int:
    """Returns the length of the longest row that imported weights read, as far as they state it."""
    return positions_of(weights) or LONGEST


def require_readable(task: Task, config: RunConfig) -> None:
    """Raises ConfigError, with the reason, where a run's network is not read as rows of symbols alone."""
    if changing := [part.kind for part in config.compression if part.changes_passes]:
        reason = f"{changing[0]} rounds the inputs of linear maps in every pass"
        raise ConfigError(f"{reason}; choose --to safetensors, or export a run without it", "compression")
    if isinstance(task.data, PairDescription) and task.data.placed:
        reason = "targets begin at positions that other programs do not know"
        raise ConfigError(f"{reason}; choose --to safetensors", "data")
    if not isinstance(task.network, RowNetwork | CausalNetwork | PairNetwork):
        reason = "reads neither rows nor pairs"
        raise ConfigError(f"{reason}; choose --to safetensors", f"model: {config.model.kind}")
    if isinstance(task.data, MixedDescription):
        raise ConfigError("has heads of several tasks, and an export has one; choose --to safetensors", "task")
    if isinstance(task.data, LabelledDescription) and (task.data.pieces > 1 or not task.data.padding_last):
        cut = "cut long texts into pieces" if task.data.pieces > 1 else "have padding between two texts"
        raise ConfigError(f"the rows of the run {cut}, which other programs do not; choose --to safetensors", "data")
    require_exportable(config.model)


def require_exportable(model: ModelConfig) -> None:
    """Raises ConfigError, with the reason, where the outputs of a network follow from more than its inputs."""
    way_out = "choose --to safetensors"
    for field in fields(model):
        name, mixer = field.name, getattr(model, field.name)
        if isinstance(mixer, MixerConfig) and mixer.promises().of_pass:
            reason = f"a row has other outputs of {mixer.mixer_name} in each pass"
            raise ConfigError(f"{reason}; {way_out}", f"model.{name}")
    if model.mixer.remembered:
        raise ConfigError(f"an export keeps no memory between rows; set it to 0, or {way_out}", "model.mixer.memory")
