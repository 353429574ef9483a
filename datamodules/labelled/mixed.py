"""Data of several sources of labelled examples, for tasks that learn from all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import ClassVar

from datamodules.core.data import Data, DataConfig, row_conflicts
from datamodules.core.documents import Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Examples, ExamplesConfig
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import Symbols, Tokenizer
from datamodules.core.trained import TrainedSymbols
from datamodules.core.windows import Windows
from datamodules.labelled.labelled import (
    LabelledData,
    LabelledDataConfig,
    LabelledEvaluationConfig,
    Padding,
    RowShape,
    batched,
)
from datamodules.labelled.listops import ListOpsConfig
from datamodules.labelled.sampling import (
    MixedOrder,
    MixedPass,
    ProportionalConfig,
    SourceExample,
    SourceSamplingConfig,
    SourceShare,
    grouped_by_source,
)
from lit_transformers.batch import DataDescription, LabelledBatch, MixedDescription
from lit_transformers.config import NonNegative, Plain, Positive, canonical_hash

__all__ = ["MixedData", "MixedDataConfig"]

MEAN = "mean"
"""The prefix of measures that are means over tasks, so that no source can have this name."""


class MixedDataConfig(DataConfig, kind="mixed"):
    """Several sources of labelled sequences with one vocabulary. Each batch (LabelledBatch) comes from one source.
    Evaluation reads all sources, one after another.

    sources     the examples of each source, by its name; the table EXAMPLES lists the kinds
    sampling    how training batches are divided among sources, by their numbers of examples
    batch_size  rows over all ranks together
    window      the number of batches whose examples are sorted together by length, for each source, so that the rows of
                a batch have similar lengths; 1: examples are not sorted
    padding     longest: to the longest row of the batch. fixed: to the longest row of its source
    seed        draws the sources of batches and the order of examples; it does not change the examples
    workers     worker processes that make batches; 0: the training process makes them
    evaluation  its field examples is the largest number of examples of each source
    """

    describes: ClassVar[type[DataDescription]] = MixedDescription

    sources: dict[str, ExamplesConfig] = field(default_factory=lambda: {"listops": ListOpsConfig()})
    sampling: SourceSamplingConfig = ProportionalConfig()
    batch_size: Positive = 32
    window: Positive = 64
    padding: Padding = "longest"
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: LabelledEvaluationConfig = LabelledEvaluationConfig()

    def conflicts(self) -> Iterator[str]:
        if not self.sources:
            yield "sources is empty; set sources to {name: {kind: sentences, ...}, ...}"
        for name in self.sources:
            if not name.isidentifier() or name.startswith("_") or name == MEAN:
                yield f"{name!r} cannot be the name of a source; use another word as a key of sources"

    def build(self) -> MixedData:
        return MixedData(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in the order of their numbers."""
        return tuple(sorted(self.sources))

    @property
    def name(self) -> str:
        return " + ".join(self.names)

    @property
    def length(self) -> int:
        return max(source.longest_row for source in self.sources.values())

    @property
    def tokens_per_step(self) -> int:
        """Counts every row as the longest of all sources, since lengths are unknown before rows are read."""
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        of_sources: dict[str, Plain] = {name: self.sources[name].protocol() for name in self.names}
        return of_sources | {"split": self.evaluation.split, "examples": self.evaluation.examples}

    def measured(self) -> dict[str, Plain]:
        return super().measured() | {name: self.sources[name].measured() for name in self.names}

    def restored(self, metadata: Mapping[str, Plain]) -> MixedDescription:
        trained = TrainedSymbols.of(metadata)
        return MixedDescription.of_sources(
            {name: source.described(trained.of_source(name)) for name, source in self.sources.items()}
        )

    def of_source(self, name: str) -> LabelledDataConfig:
        """Returns the config of the data of one source."""
        return LabelledDataConfig(
            source=self.sources[name],
            batch_size=self.batch_size,
            window=self.window,
            padding=self.padding,
            seed=self.seed,
            workers=self.workers,
            evaluation=self.evaluation,
        )


class MixedData(Data):
    """Batches of labelled sequences of several sources."""

    config: MixedDataConfig

    @cached_property
    def examples(self) -> dict[str, Examples]:
        """The examples of each source, in the order of names. Raises DataError if the symbols of two sources have
        different meanings."""
        examples = {name: self.config.sources[name].build() for name in self.config.names}
        if self.trained is not None:
            for name, source in examples.items():
                source.read_as(self.trained.of_source(name))
        first, *others = ((name, source.trained_symbols()) for name, source in examples.items())
        for name, symbols in others:
            if not symbols.stand_for_those_of(first[1]):
                raise DataError(
                    f"data.sources.{name}: its symbols differ in meaning from the symbols of {first[0]}; give all "
                    "sources one tokenizer"
                )
        return examples

    @property
    def content(self) -> str:
        return canonical_hash({name: source.content for name, source in self.examples.items()}, 32)

    @cached_property
    def description(self) -> MixedDescription:
        return self.config.restored(self.trained_symbols().to_dict())

    def metadata(self) -> dict[str, Plain]:
        return {}

    def reading_messages(self) -> list[str]:
        messages = ((name, source.reading_messages()) for name, source in self.examples.items())
        return [f"{name}: {message}" for name, of_source in messages for message in of_source]

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all processes, and prints once how the sources were read."""
        self.print_reading()

    def trained_symbols(self) -> TrainedSymbols:
        symbols = {name: source.trained_symbols() for name, source in self.examples.items()}
        shared = next(iter(symbols.values()))
        return shared._replace(labels={name: of_source.labels for name, of_source in symbols.items()})

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for source in self.examples.values():
            yield from source.encoded(split)

    def split_read(self, split: Split) -> Split:
        """Returns validation in place of test where a source has no test, so that all are read of one split."""
        read = {source.split_read(split) for source in self.examples.values()}
        return split if read == {split} else "validation"

    def example_name(self, ordinal: int) -> str:
        place, number = divmod(ordinal, len(self.config.names))
        name = self.config.names[number]
        return f"{name}: {self.examples[name].name(self.measured_split, place)}"

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "sources": {name: source.fingerprint for name, source in self.examples.items()},
            "sampling": config.sampling.to_dict(),
            "batch_size": config.batch_size,
            "window": config.window,
            "padding": config.padding,
            "seed": config.seed,
        }

    def training(self) -> Reading:
        config, rows = self.config, self.rows(self.config.batch_size)
        order = partial(MixedOrder, self._counts("train"), config.sampling, rows, config.seed)
        return self._reading("train", rows, order)

    def evaluation(self, split: Split) -> Reading:
        evaluation = self.config.evaluation
        order = partial(MixedPass, self._counts(split), evaluation.examples)
        return self._reading(split, self.rows(evaluation.batch_size or self.config.batch_size), order)

    def batches_of(self, name: str, batches: int) -> int:
        """Returns how many of the first ``batches`` batches of training are of one source."""
        order = MixedOrder(self._counts("train"), self.config.sampling, 1, self.config.seed)
        return int(order.before(batches)[self.config.names.index(name)])

    def of_source(self, name: str) -> LabelledData:
        """Returns the data of one source, with the same symbols and labels."""
        data = self.config.of_source(name).build()
        if self.trained is not None:
            data.read_as(self.trained.of_source(name))
        return data

    def _counts(self, split: Split) -> list[int]:
        return [source.count(split) for source in self.examples.values()]

    def _reading(self, split: Split, rows: int, order: Callable[[], MixedOrder | MixedPass]) -> Reading:
        config, described = self.config, self.description.sources.values()
        shapes = [RowShape.of(description, rows, config.window, config.padding) for description in described]
        open_rows = partial(_open, [*self.examples.values()], config.names, split, shapes, order)
        return Reading(open_rows, self.rank(), config.workers)


def _open(
    sources: Sequence[Examples],
    names: Sequence[str],
    split: Split,
    shapes: Sequence[RowShape],
    order: Callable[[], MixedOrder | MixedPass],
    share: Shard,
) -> Windows[SourceExample, SourceShare, LabelledBatch]:
    def batch(share: SourceShare, cursor: str) -> LabelledBatch:
        """Makes a batch. Its ordinals interleave the examples of all sources."""
        labelled = batched(shapes[share.source], share.examples, cursor)
        return labelled._replace(example=labelled.example * len(names) + share.source, source=names[share.source])

    group = partial(grouped_by_source, sources, split, shapes, share)
    return Windows(order(), shapes[0].rows * shapes[0].window, group, batch)
