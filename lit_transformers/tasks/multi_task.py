"""Multi-task training: one network, and private heads that each learn from the batches of one source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import (
    ClassLabels,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    Labels,
    MixedDescription,
    NumberLabels,
    Vocabulary,
)
from lit_transformers.config import ConfigError, PositiveFloat, nearest
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Representation
from lit_transformers.heads.metric import HeadsMetric
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.cost import shapes_or_values
from lit_transformers.models.model import ModelConfig
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.tasks.pooled import PooledTaskConfig
from lit_transformers.tasks.regression import RegressionConfig
from lit_transformers.tasks.task import TaskConfig
from lit_transformers.training.config import TrainingConfig

USUAL: Mapping[type[Labels], type[LabelledTaskConfig]] = {
    ClassLabels: ClassificationConfig,
    NumberLabels: RegressionConfig,
}
"""The default task of a source, by the kind of its labels."""
MEAN_NATS, MEAN_SCORE = "mean_nats", "mean_score"


class MultiTaskConfig(LabelledTaskConfig, kind="multi_task"):
    """Trains one network on several tasks, each with private heads (MT-DNN, arXiv:1901.11504; arXiv:1905.05583, section
    5.5). A batch comes from one source: it trains the network and the heads of that source's task, and no other head.

    With ``distillation``, the teacher is a network of the same tasks: the head of each task learns from the teacher's
    head of this task.

    A measure of a task is called "SOURCE_MEASURE". ``mean_nats`` is the mean of the nats of the tasks. ``mean_score``
    is the mean of one measure of each task, as in GLUE (arXiv:1804.07461): each task counts once, with any number of
    examples, and a percentage is divided by 100.

    tasks: the task of each source, by the name of the source. By default classification for classes, and regression for
    numbers.
    weights: the weight of each task's loss, by the name of its source; 1 by default.
    scores: the measure of each task that ``mean_score`` averages, by the name of its source. By default the first
    measure that is maximized; if a task has none, ``mean_score`` is omitted.
    """

    reads: ClassVar[type[DataDescription]] = MixedDescription

    tasks: dict[str, TaskConfig] = field(default_factory=dict)
    weights: dict[str, PositiveFloat] = field(default_factory=dict)
    scores: dict[str, str] = field(default_factory=dict)

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.heads:
            yield "heads would learn from all batches, but each batch belongs to one task; move heads into one of tasks"
        if self.distillation is not None and self.distillation.rows == "contiguous":
            yield "several tasks have rows of several layouts; set distillation.rows to same"
        for name, task in self.tasks.items():
            if task.reads is not LabelledDescription:
                yield f"tasks.{name} is {task.kind}, which does not learn from labels; set tasks.{name} to another one"
            elif task.evaluation:
                yield f"tasks.{name} shares the network; empty tasks.{name}.evaluation, and set evaluation"
            elif isinstance(task, LabelledTaskConfig) and (task.layers is not None or task.combined_layers):
                field = "combined_layers" if task.layers is None else "layers"
                yield f"tasks.{name} shares the layers of the network; drop tasks.{name}.{field}, and set {field}"
            elif isinstance(task, LabelledTaskConfig) and task.distillation is not None:
                yield f"tasks.{name} shares the teacher; drop tasks.{name}.distillation, and set distillation"
            elif isinstance(task, PooledTaskConfig) and task.self_distillation is not None:
                yield f"tasks.{name} shares the network with other tasks; drop tasks.{name}.self_distillation"

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MultiTask:
        return MultiTask(self, model, data, training)

    def task_of(self, source: str, data: DataDescription) -> TaskConfig:
        """Returns the task of a source. Raises ConfigError if a field names a source that the data do not have, or if
        the labels of this source have no default task."""
        described = MixedDescription.of(data, self.kind).sources
        for place, names in (("tasks", self.tasks), ("weights", self.weights), ("scores", self.scores)):
            if unknown := sorted(names.keys() - described.keys()):
                raise ConfigError(
                    f"is no source of the data; {nearest(unknown[0], described)}", f"{place}.{unknown[0]}"
                )
        if source in self.tasks:
            return self.tasks[source]
        labels = described[source].labels
        if type(labels) not in USUAL:
            reason = f"the source {source} holds {labels.kind}, of which no objective is the usual one"
            raise ConfigError(f"{reason}; set tasks.{source}", "task.tasks")
        return USUAL[type(labels)]()

    def named_heads(self, source: str, data: DataDescription) -> dict[str, str]:
        """Returns the names of the heads within a source's task, by their names in this task: SOURCE for the first
        head, and SOURCE_NAME for the others."""
        names = self.task_of(source, data).all_heads(MixedDescription.of(data, self.kind).sources[source])
        return {source if place == 0 else f"{source}_{name}": name for place, name in enumerate(names)}

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        heads: dict[str, HeadConfig] = {}
        for source, described in MixedDescription.of(data, self.kind).sources.items():
            configs = self.task_of(source, data).all_heads(described)
            for name, own in self.named_heads(source, data).items():
                if name in heads or name in dir(torch.nn.ModuleDict()):
                    raise ConfigError(
                        f"{name!r} cannot be the name of a head; use another word", f"data.sources.{source}"
                    )
                weight = configs[own].weight * self.weights.get(source, 1.0)
                heads[name] = configs[own].override({"weight": weight})
        return heads

    def source_of(self, head: str, data: DataDescription) -> str:
        """Returns the name of the source that a head learns from."""
        sources = MixedDescription.of(data, self.kind).sources
        return next(source for source in sources if head in self.named_heads(source, data))

    def data_of(self, head: str, data: DataDescription) -> DataDescription:
        return MixedDescription.of(data, self.kind).sources[self.source_of(head, data)]

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two random rows of the first source."""
        return self.random_batches(data)[0]

    def random_batches(self, data: DataDescription) -> list[LabelledBatch]:
        described, batches = MixedDescription.of(data, self.kind), []
        for source, of_source in described.sources.items():
            shortened = replace(of_source, length=min(of_source.length, data.length))
            batch = self.task_of(source, data).random_batch(shortened)
            ordinals = batch.example * len(described.sources) + described.number_of(source)
            batches.append(batch._replace(source=source, example=ordinals))
        return batches

    def probe_data(self, vocabulary: Vocabulary, length: int) -> DataDescription:
        names = {*self.tasks, *self.weights, *self.scores}
        if not names:
            return super().probe_data(vocabulary, length)
        tasks = {name: self.tasks.get(name, ClassificationConfig()) for name in names}
        probes = {
            name: LabelledDescription.of(task.probe_data(vocabulary, length), task.kind) for name, task in tasks.items()
        }
        return MixedDescription.of_sources(probes)

    def measures(self, data: DataDescription) -> dict[str, Measure]:
        named = {
            f"{head}_{name}": measure
            for head, config in self.all_heads(data).items()
            for name, measure in config.measures(self.data_of(head, data)).items()
        }
        means = minimized(MEAN_NATS, per="task")
        return named | means | (maximized(MEAN_SCORE, per="task") if self.scores_of(data) else {})

    def averaged(self, metric: str, data: DataDescription) -> dict[str, Measure]:
        scores: Mapping[str, str] = {}
        if metric == MEAN_SCORE:
            scores = self.scores_of(data)
        elif metric == MEAN_NATS:
            scores = dict.fromkeys(MixedDescription.of(data, self.kind).sources, "nats")
        measures = self.measures(data)
        return {name: measures[name] for name in (f"{source}_{score}" for source, score in scores.items())}

    def measured_as(self, metric: str) -> str:
        sources = [name for name in self.tasks if metric.startswith(f"{name}_")]
        if not sources:
            return metric
        source = max(sources, key=len)
        return f"{source}_{self.tasks[source].measured_as(metric.removeprefix(f'{source}_'))}"

    def scores_of(self, data: DataDescription) -> dict[str, str]:
        """Returns the measure of each source that ``mean_score`` averages; empty if a task has no such measure. Raises
        ConfigError for a measure that its task does not have."""
        scores: dict[str, str] = {}
        for source, described in MixedDescription.of(data, self.kind).sources.items():
            head = next(iter(self.task_of(source, data).all_heads(described).values()))
            measures = head.measures(described)
            if source in self.scores:
                if self.scores[source] not in measures:
                    raise ConfigError(
                        f"is not measured; {nearest(self.scores[source], measures)}", f"task.scores.{source}"
                    )
                scores[source] = self.scores[source]
                continue
            score = next((name for name, measure in measures.items() if measure.goal == "maximize"), None)
            if score is None:
                return {}
            scores[source] = score
        return scores


class MultiTaskMetric(HeadsMetric):
    """Collects the sums of the heads of all tasks. A row describes one example: the nats and targets of the first head
    of its task, then the columns of all heads. The columns of other tasks are 0.

    sources: the source of each head, in the order of the sources. scores: the perfect score (1 or 100) of each measure
    that ``mean_score`` averages, by the measure's name; empty without ``mean_score``.
    """

    leading: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int}

    def __init__(self, heads: Mapping[str, Head], sources: Mapping[str, str], scores: Mapping[str, float]) -> None:
        super().__init__(heads)
        self.sources, self.scores = dict(sources), dict(scores)
        self.order = [*dict.fromkeys(sources.values())]

    def update(self, documents: Int[Tensor, "*n"], sums: Mapping[str, Float[Tensor, "*n c"]]) -> None:
        first, targets = next(iter(sums.values()))[..., :2].double().split(1, dim=-1)
        total = torch.cat([first, targets, torch.zeros_like(first)], dim=-1)
        columns = torch.zeros(*documents.shape, len(self.names), dtype=torch.float64, device=documents.device)
        columns[..., : len(self.leading)] = total
        for name, values in sums.items():
            columns[..., self.places[name]] = values.double()
        self.add(documents.flatten(), columns.flatten(0, documents.dim() - 1))

    def results_of(self, rows: Sequence[Any]) -> dict[str, float]:
        results: dict[str, float] = {}
        for name, head in self.heads.items():
            place = self.order.index(self.sources[name])
            own = [row[1:] for row in rows if row.document % len(self.order) == place]
            if own:
                columns = list(zip(*own, strict=True))[self.places[name]]
                values = head.results(dict(zip(head.columns, columns, strict=True)))
                results |= {f"{name}_{measure}": value for measure, value in values.items()}
        nats = {f"{source}_nats": 1.0 for source in self.order}
        for mean, averaged in ((MEAN_NATS, nats), (MEAN_SCORE, self.scores)):
            if averaged and all(name in results for name in averaged):
                results[mean] = sum(results[name] / full for name, full in averaged.items()) / len(averaged)
        return results


class MultiTask(LabelledTask):
    """Trains and measures a network with the heads of several tasks. ``of_source`` returns the task of one source."""

    config: MultiTaskConfig
    data: MixedDescription

    def __init__(
        self, config: MultiTaskConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError if the model cannot be built, or cannot be used for one of the tasks."""
        super().__init__(config, model, data, training)
        self.sources = {head: config.source_of(head, data) for head in config.all_heads(data)}
        full = {name: measure.full for name, measure in config.averaged(MEAN_SCORE, data).items()}
        self.add_heads(lambda heads: MultiTaskMetric(heads, self.sources, full))
        # In tuples, so that they are not submodules: their networks and heads belong to this task.
        readers = {source: shapes_or_values(partial(self._single, source), lambda task: None) for source in self._names}
        self._readers = ({source: task for source, (task, _) in readers.items()},)
        self._tasks = (dict[str, LabelledTask](),)
        self._learned: set[str] = set()

    @property
    def _names(self) -> list[str]:
        return [*self.data.sources]

    def _single(self, source: str) -> LabelledTask:
        """Builds the task of one source, which reads the same layers as this task. Raises ConfigError if it cannot be
        built."""
        config, training = self.config.task_of(source, self.data), self.training_config
        alone = training.override({"compile": False, "groups": ()})
        task = config.build(self.model_config, self.data.sources[source], alone)
        assert isinstance(task, LabelledTask)
        task.combination = self.combination
        return task

    def of_source(self, source: str) -> LabelledTask:
        """Returns the task of one source, with this task's evaluation network and heads. Raises ConfigError for an
        unknown source."""
        tasks = self._tasks[0]
        if source not in self._names:
            raise ConfigError(f"there is no source {source!r}; {nearest(source, self._names)}", "head")
        if source not in tasks:
            with torch.random.fork_rng(devices=[]):
                tasks[source] = self._single(source).eval()
            for name, own in self.config.named_heads(source, self.data).items():
                tasks[source].heads[own] = self.heads[name]
        tasks[source].network = self.evaluator()
        return tasks[source]

    def heads_of(self, batch: LabelledBatch) -> Mapping[str, Head]:
        return {name: head for name, head in self.heads.items() if self.sources[name] == batch.source}

    def read(self, network: RowNetwork, batch: LabelledBatch) -> Representation:
        return self.reader(batch).read(network, batch)

    def reader(self, batch: LabelledBatch) -> LabelledTask:
        return self._readers[0][batch.source]

    def flops_of_heads(self, length: int) -> float:
        """Returns the mean over sources of the FLOPs of their heads: only the heads of its source read a row."""
        return super().flops_of_heads(length) / len(self.data.sources)

    def evaluation_output(self, batch: LabelledBatch) -> Tensor:
        return self.of_source(batch.source).evaluation_output(batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> Sequence[Any]:
        """Returns the predictions of the task of the batch's source."""
        return self.of_source(batch.source).predict_step(batch, batch_index)

    def training_step(self, batch: LabelledBatch, batch_index: int) -> dict[str, Any]:
        self._learned |= self.heads_of(batch).keys()
        return super().training_step(batch, batch_index)

    def training_output(
        self, losses: Mapping[str, HeadLoss], reading: Representation, batch: LabelledBatch
    ) -> dict[str, Any]:
        """Returns the output of a task, and adds the loss of the batch's first head by its name, since "nats" belong to
        a different task from batch to batch."""
        output, first = super().training_output(losses, reading, batch), next(iter(losses))
        return output | {"heads": {first: (output["nats"], output["targets"])} | output["heads"]}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the gradients of heads that had no batch in the update. Their gradients are zeros, which ranks wait
        for; with them the optimizer would move the heads by momentum and weight decay."""
        for name, head in self.heads.items():
            if name not in self._learned:
                for parameter in head.parameters():
                    parameter.grad = None
        self._learned.clear()
        super().on_before_optimizer_step(optimizer)
