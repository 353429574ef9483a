"""The config of a run, and the cost of the run, which is computed from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from datamodules import Data, DataConfig, LanguageDataConfig, TrainedSymbols
from lit_transformers.attention.kernels import cuda_only
from lit_transformers.batch import (
    DataDescription,
    LabelledDescription,
    LanguageDescription,
    MixedDescription,
    PairDescription,
)
from lit_transformers.compression import CompressionConfig
from lit_transformers.compression.callback import compressions_of
from lit_transformers.config import Config, ConfigError, Plain, Seed, nearest, paths_within, table
from lit_transformers.models import LanguageModelConfig, ModelConfig
from lit_transformers.models.capabilities import lowest_layers
from lit_transformers.models.cost import ModelCost, shapes_or_values
from lit_transformers.models.model import Network
from lit_transformers.records.reference import Reference
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.shared_weights import share_conflicts
from lit_transformers.runs.sources import (
    ConvertedWeightsConfig,
    FileWeightsConfig,
    ImportedWeightsConfig,
    SameWeightsConfig,
    StartConfig,
    StartSeed,
    WeightSourceConfig,
)
from lit_transformers.runs.starting_weights import read_weights, symbols_of_file
from lit_transformers.runs.trained_symbols import tokenizers_for
from lit_transformers.tasks import CausalLMConfig, QuestionAnsweringConfig, Task, TaskConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import with_groups
from lit_transformers.training.training_flops import RowLength, flops_without_gradients

__all__ = ["Description", "RunConfig", "RunWeightsConfig", "describe", "references", "seeds_of", "spent"]

SEEDS = ("seed", "data.seed")
"""The paths of the seeds of a run: of its weights and dropout, and of the order of its data."""


class RunConfig(Config):
    """All that a run depends on. ``seed`` is for the weights and dropout; the order of the data has its own seed.

    start: where its weights come from, part by part: files, imports, or other runs, which are done first.
    compression: the changes of its weights, in the order of the list: pruning, quantisation, shared values. A run of no
    steps that starts from another run compresses the other one's weights after their training.
    timed: measure the time of passes of its network as a share of that of the network that it starts from, in turns, at
    its end; for a machine on which nothing else runs.
    """

    runner: ClassVar[str] = "lit_transformers.runs.runner:RUNNER"
    former: ClassVar[Mapping[str, str]] = {"weights": "start"}

    model: ModelConfig = LanguageModelConfig()
    task: TaskConfig = CausalLMConfig()
    data: DataConfig = LanguageDataConfig()
    training: TrainingConfig = TrainingConfig()
    seed: Seed = 0
    start: StartConfig = StartConfig()
    compression: tuple[CompressionConfig, ...] = ()
    timed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "task", self.task.of_data(self.data.summaries))
        parts = ("network", "heads", "teacher")
        runs = {part: self.start.get(part) for part in parts}
        seeded: dict[str, Any] = {
            name: source.seeded(self) for name, source in runs.items() if isinstance(source, RunWeightsConfig)
        }
        object.__setattr__(self, "start", replace(self.start, **seeded))

    def conflicts(self) -> Iterator[str]:
        try:
            self.model.override(self.task.evaluation)
        except ConfigError as error:
            yield f"task.evaluation changes a field that model does not have: {error}"
        if self.training.precision == "bf16" and self.training.device == "cpu" and self.training.steps:
            yield "training in bf16 needs CUDA, and training.device is cpu; set training.precision to 32"
        if cuda_only(self.training.attention_kernel) and self.training.device == "cpu":
            yield f"training.attention_kernel {self.training.attention_kernel} needs CUDA, and training.device is cpu"
        if self.training.strategy == "fsdp" and self.task.evaluation:
            yield (
                "training.strategy fsdp cannot measure another network than it trains: "
                "empty task.evaluation, or set training.strategy to ddp"
            )
        if self.start.teacher is not None and not self.task.learned_of_teacher:
            yield "start.teacher teaches nothing; set task.distillation, or drop start.teacher"
        if self.start.teacher is None and self.task.learned_of_teacher:
            yield "task.distillation learns from start.teacher, which is null; set start.teacher to a run or a file"
        yield from self._compression_conflicts()
        yield from self._timing_conflicts()
        yield from self._layer_conflicts()
        yield from share_conflicts(self.start, self.model)
        if self.training.devices > 1:
            yield from (f"data.{reason}" for reason in self.data.rank_conflicts(self.training.devices))
        if self.data.describes is not self.task.reads:
            kinds = {k: data for k, data in DataConfig.kinds.items() if issubclass(data, DataConfig)}
            suitable = [kind for kind, data in kinds.items() if data.describes is self.task.reads]
            yield (
                f"task {self.task.kind} does not learn from data {self.data.kind}, whose batches are of another type; "
                f"set data to {' or '.join(suitable)}, or another task"
            )

    def _layer_conflicts(self) -> Iterator[str]:
        layers, depth = self.start.layers, dict(self.model.leaves()).get("depth")
        if layers is not None and depth is None:
            yield "start.layers chooses from one stack, and the network has several or none; drop layers"
        elif layers is not None and len(layers) != depth:
            yield f"start.layers keeps {len(layers)} layers, and model.depth is {depth}; set it to {len(layers)}"

    def _compression_conflicts(self) -> Iterator[str]:
        if not self.compression:
            return
        for number, compression in enumerate(self.compression):
            if compression.learns and not self.training.steps:
                yield f"compression.{number} {compression.kind} learns in training; set training.steps to more than 0"
            if compression.needs_whole_batches and self.training.devices > 1:
                reason = f"{compression.kind} reads all rows of a batch at once, which ranks divide"
                yield f"compression.{number} {reason}; set its by: row, or training.devices: 1"
        if self.training.stop is not None:
            yield "compression changes the last weights, and training.stop selects others; set training.stop to null"
        if self.training.strategy == "fsdp":
            yield "compression needs whole matrices, of which fsdp leaves each rank a part; set training.strategy: ddp"
        if self.training.cache_features:
            yield "compression changes the network whose features are cached; set training.cache_features: false"
        if self.training.cached_layers:
            yield "compression changes the layers whose outputs are cached; set training.cached_layers: 0"

    def _timing_conflicts(self) -> Iterator[str]:
        if not self.timed:
            return
        if self.start.network is None:
            yield "timed compares with the network of start.network; set it, or timed: false"
        if self.data.describes not in (LabelledDescription, PairDescription):
            yield f"timed reads labelled texts or pairs, which {self.data.name} are not; set timed: false"
        if self.training.devices > 1:
            yield "timed is of one process; set training.devices: 1, or timed: false"

    @classmethod
    def from_dict(cls, plain: Plain) -> Self:
        return super().from_dict(with_groups(plain, "task", "training") if isinstance(plain, Mapping) else plain)

    @property
    def tokens_per_step(self) -> int:
        """Planned tokens of one update, over all its batches and ranks; it may read fewer, or of pairs more."""
        return self.training.accumulate * self.data.tokens_per_step

    @property
    def examples_per_step(self) -> int | None:
        """The number of examples of an update over all ranks; None for data whose speed is not shown in examples."""
        examples = self.data.examples_per_batch
        return None if examples is None else self.training.accumulate * examples

    @property
    def is_packed(self) -> bool:
        """Whether the bytes of the packed checkpoint are measured: of compressed weights, of a network that is made of
        a larger one, and of a run of no steps."""
        return bool(self.compression) or self.start.makes_smaller or not self.training.steps

    @property
    def reads_passages_apart(self) -> bool:
        """Whether states of passages can be computed once for all questions, so that their bytes are measured."""
        return isinstance(self.task, QuestionAnsweringConfig) and self.model.passage_bytes(1) is not None

    @property
    def measured_task(self) -> TaskConfig:
        """The objective as it is measured on texts in the language of the data's targets. It is not kept in the config,
        so that a change of the data alone is measured in the language of these."""
        return self.task.of_language(self.data.target_language)

    def build_data(self) -> Data:
        """Opens the data; those of a run that starts from weights are read with their tokenizers, and with their labels
        where its heads do. Weights are looked for before the data, and the data of a run that it starts from are opened
        for their symbols. Raises ConfigError or DataError."""
        trained = self._starting_symbols()
        data = self.data.build()
        if trained is not None:
            data.read_as(tokenizers_for(self.data, trained))
        return data

    def build_task(self, data: Data) -> Task:
        """Builds the LightningModule for the description of the data, with its groups of parameters."""
        with paths_within(self):
            task = self.measured_task.build(self.model, data.description, self.training)
            _ = task.groups
        return task

    def build_teacher(self, description: DataDescription) -> LabelledTask:
        """Builds the task that the run's own learns from, with random weights: where it teaches outputs, the task that
        it was trained for, and else one that reads its network as it is. description: of the data, which it reads as
        well. Raises ConfigError where outputs are learned of a task without labels."""
        source, own = self.start.teacher, self.task
        assert source is not None and isinstance(own, LabelledTaskConfig) and own.distillation is not None
        config: TaskConfig = own.override({"evaluation": {}, "layers": None, "combined_layers": ()})
        if isinstance(source, RunWeightsConfig):
            model, trained = source.run.model, source.run.task
        else:
            weights = read_weights(file_of_source(source, "start.teacher"), whole=False)
            model, trained = weights.model, config if weights.task is None else TaskConfig.from_dict(weights.task)
        config = trained if own.distillation.logits else config
        if not isinstance(config, LabelledTaskConfig):
            reason = f"was trained for {config.kind}, which predicts no labels"
            raise ConfigError(f"{reason}; name another, or set task.distillation.logits to 0", "start.teacher")
        read = own.distillation.read_by_teacher(description)
        try:
            teacher = config.by_labels_alone().build(model, read, TrainingConfig())
        except ConfigError as error:
            raise error.under("start.teacher") from None
        assert isinstance(teacher, LabelledTask)
        return teacher

    def _starting_symbols(self) -> TrainedSymbols | None:
        """Returns the meaning of the symbols of the weights that training starts from; None where there are no weights,
        or where they do not state it. Raises ConfigError where sources differ in it."""
        known: dict[str, TrainedSymbols] = {}
        for part, source in self.start.sources().items():
            symbols = _symbols_of(source, f"start.{part}")
            if symbols is not None:
                known[part] = symbols
        if not known:
            return None
        (of_first, first), *others = known.items()
        for part, symbols in others:
            if not symbols.stand_for_those_of(first):
                reason = f"was trained with another tokenizer than start.{of_first}; name weights that share one"
                raise ConfigError(reason, f"start.{part}")
        labels, columns = None, None
        if "heads" in known:
            labels, columns = self._starting_labels(known["heads"]), known["heads"].columns
        if "teacher" in known and "outputs" in self.task.learned_of_teacher:
            taught = known["teacher"]
            if labels is not None and taught.labels is not None and labels != taught.labels:
                raise ConfigError("has other labels than start.heads, or in another order", "start.teacher")
            labels, columns = labels or taught.labels, columns or taught.columns
        return first._replace(labels=labels, columns=columns)

    def _starting_labels(self, trained: TrainedSymbols) -> Plain:
        """Returns the class names of the heads that training starts from. Raises ConfigError if ``start.head`` is
        missing for heads of several tasks, or is set for heads of one task."""
        head, of_several = self.start.head, isinstance(trained.labels, Mapping)
        if (head is not None) != (of_several and self.data.describes is not MixedDescription):
            names = ", ".join(trained.labels) if of_several else "one task"
            way_out = "set start.head to one of them" if head is None else "drop start.head"
            raise ConfigError(f"holds the heads of {names}; {way_out}", "start.heads")
        if head is None:
            return trained.labels
        if head not in trained.labels:
            raise ConfigError(f"is not a task of start.heads; {nearest(head, trained.labels)}", "start.head")
        return trained.labels[head]


class RunWeightsConfig(WeightSourceConfig, kind="run"):
    """Another run, which is done first, once however many runs start from it.

    run: its config.
    seed: that of its weights and data: ``follow`` for those of the run that starts from it, or a fixed number.
    """

    run: RunConfig
    seed: StartSeed = "follow"

    def seeded(self, follower: RunConfig) -> RunWeightsConfig:
        """Returns the source with the seeds of its run for a run that starts from it."""
        values = dict.fromkeys(SEEDS, follower.seed) | seeds_of(follower) if self.seed == "follow" else {}
        seeds = {path: values.get(path, self.seed) for path in seeds_of(self.run)}
        return self if seeds == seeds_of(self.run) else replace(self, run=self.run.override(seeds))


table(
    WeightSourceConfig,
    FileWeightsConfig,
    ImportedWeightsConfig,
    ConvertedWeightsConfig,
    RunWeightsConfig,
    SameWeightsConfig,
)


def seeds_of(config: Config) -> dict[str, int]:
    """Returns the seeds of a run by their paths; data that are read in one order have none."""
    return {path: value for path, value in config.leaves() if path in SEEDS}


def _symbols_of(source: WeightSourceConfig, place: str) -> TrainedSymbols | None:
    """Returns the meaning of the symbols of a source of weights; None where a file does not state it. Raises
    ConfigError where the data of a run do not state it. place: the field of the source."""
    if not isinstance(source, RunWeightsConfig):
        return symbols_of_file(file_of_source(source, place))
    data = source.run.build_data()
    symbols = data.trained_symbols()
    if symbols == TrainedSymbols():
        reason = "does not define its symbols; return from trained_symbols() of its data all that decides them"
        raise ConfigError(reason, f"{place}.run.data")
    return symbols


class Description(NamedTuple):
    """The cost of a run, computed without training. ``parameters`` are all that outputs depend on, of which
    ``frozen_parameters`` learn nothing; ``flops_per_token`` is for a forward pass in training, and
    ``train_flops_per_token`` for a step: three times as many, without those that are saved where groups are frozen
    (``lit_transformers/training/training_flops.py``), and without the forward pass of a network, or of its lowest
    layers, whose outputs are cached. A third of the forward pass of a teacher is part of both, for it has no
    backward pass. Evaluations, and the one pass that fills the cache, are not included. ``tokens`` are
    planned: rows are counted as their data plan them."""

    parameters: int
    frozen_parameters: int
    embedding_parameters: int
    flops_per_token: float
    train_flops_per_token: float
    train_flops: float
    tokens: int
    state_bytes: int
    decoding_state: int | None


def describe(config: RunConfig, data: Data | None = None) -> Description:
    """Returns the parameters, FLOPs, tokens and state of a run. ``data``: the config's data, where already built.

    Raises ConfigError where a package is missing that the run will need, and where a compression has no place in its
    network.
    """
    config.measured_task.require_packages()
    description = (data or config.build_data()).description
    with paths_within(config):
        require_compressions(config, description)
        cost = config.task.cost(config.model, description)
        frozen, saved = frozen_and_saved(config, description, cost)
    cost = cost._replace(flops_per_token=cost.flops_per_token + flops_of_teacher(config, description))
    tokens = config.training.steps * config.tokens_per_step
    train_flops_per_token = 3 * cost.flops_per_token - saved
    return Description(
        cost.parameters,
        frozen,
        cost.embedding_parameters,
        cost.flops_per_token,
        train_flops_per_token,
        train_flops_per_token * tokens,
        tokens,
        cost.state_bytes,
        cost.decoding_state,
    )


def require_compressions(config: RunConfig, data: DataDescription) -> None:
    """Raises ConfigError where a compression has no place in the network of a run, or cannot follow another."""
    if config.compression:
        shapes_or_values(
            lambda: config.measured_task.build(config.model, data, config.training),
            lambda task: compressions_of(config.compression, task),
        )


def frozen_and_saved(config: RunConfig, data: DataDescription, cost: ModelCost) -> tuple[int, float]:
    """Returns how many parameters the groups of a run freeze, and the FLOPs for each token that backward passes save by
    these groups and by the fixed matrices of adapters. Raises ConfigError for a group of parameters that the network
    does not have, and for a part that would never learn."""
    learns_whole = not config.training.groups and config.training.unfreezing is None
    if learns_whole and config.model.adapter is None:
        return 0, 0.0
    source, length = config.task.counted_lengths(data)

    def measured(task: Task) -> tuple[int, float]:
        parameters = dict(task.eval().named_parameters())
        frozen = sum(parameters[name].numel() for name in task.groups.frozen)
        continued = config.data.describes is LanguageDescription
        row = RowLength(length, task.network.carried(length).tokens if continued else 0, source)
        saved = flops_without_gradients(task, task.groups, cost.flops_per_token * length, row)
        return frozen, (saved + cached_flops(task, config.training, row)) / length

    return shapes_or_values(lambda: config.measured_task.build(config.model, data, config.training), measured)[1]


def cached_flops(task: Task, training: TrainingConfig, row: RowLength) -> int:
    """Returns the forward FLOPs for a row of the part whose outputs are cached: a network or its lowest layers, without
    the softmax; 0 without a cache."""
    if training.cached_layers and isinstance(task, LabelledTask):
        cached: Network = lowest_layers(task.network, training.cached_layers)
    elif training.cache_features:
        cached = task.network
    else:
        return 0
    return row.flops(cached) - cached.softmax_flops(row.length)


def flops_of_teacher(config: RunConfig, data: DataDescription) -> float:
    """Returns the FLOPs for each token by which a teacher adds to those of a forward pass in training; 0 without one.
    Raises ConfigError where the task of the run cannot be compared with it."""
    if config.start.teacher is None:
        return 0.0
    _, length = config.task.counted_lengths(data)

    def taught() -> Task:
        task = config.measured_task.build(config.model, data, config.training)
        assert isinstance(task, LabelledTask)
        alone[:] = [task.other_flops(length)]
        task.learn_from(config.build_teacher(data))
        return task

    alone: list[float] = []
    with_teacher = shapes_or_values(taught, lambda task: task.other_flops(length))[1]
    return (with_teacher - alone[0]) / length


def spent(description: Description, config: RunConfig, steps: int, tokens: int) -> dict[str, Plain]:
    """Returns the cost of a run of ``steps`` steps, for its record: the description with the tokens that it has read
    and their FLOPs, and with the tokens that were planned for these steps."""
    train_flops = description.train_flops_per_token * tokens
    cost = description._replace(tokens=tokens, train_flops=train_flops)._asdict()
    return cost | {"planned_tokens": steps * config.tokens_per_step}


def references(config: RunConfig, metric: str) -> tuple[Reference, ...]:
    """Returns the values of a metric that are known of the run's data before anything is trained, the best one last.

    metric: its name in a record, such as ``val/bpb``.
    """
    known = config.data.known_values()
    if known is None or known.metric != metric.rpartition("/")[2]:
        return ()
    return tuple(Reference(name, value) for name, value in known.values.items())
