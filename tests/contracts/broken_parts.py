"""Parts from outside with a fault each, one or more for every table, as a plug-in could have them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from datamodules import (
    BytesConfig,
    CopyConfig,
    Corpus,
    Document,
    Documents,
    Example,
    GeneratedData,
    GeneratedDataConfig,
    MaskTokensConfig,
    Shard,
    SourceConfig,
    StringPairsConfig,
    SyntheticConfig,
    TokenMaskingConfig,
)
from datamodules.core.index import Text, index_corpus
from datamodules.core.tokenizers import Bytes
from datamodules.denoising.corruptions import Corrupted, PlainText
from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.pairs.source import Pair, PairsRead
from datamodules.pairs.strings import StringPairs
from datamodules.rows.noises import Chosen, PlainRow
from datamodules.rows.rows import RowData, RowDataConfig
from datamodules.strings.generators.generator import String
from datamodules.text.sources import split_by_hash
from lit_transformers.adapters import BottleneckConfig
from lit_transformers.batch import ClassLabels, LabelledDescription, Vocabulary
from lit_transformers.compression import Compression, CompressionConfig
from lit_transformers.compression.compression import Matrices, matrices_of
from lit_transformers.decoding.decode import Decoded, GreedyConfig, walk
from lit_transformers.encodings import RotaryConfig
from lit_transformers.encodings.positions import Sinusoidal, SinusoidalConfig
from lit_transformers.encodings.rotary import Rotary
from lit_transformers.heads import ClassLabelConfig
from lit_transformers.heads.pooled import ClassLabel, PooledHeadConfig
from lit_transformers.maps import Adapter
from lit_transformers.mixer import Context, MixerConfig, Mode, Promises
from lit_transformers.models import LanguageModelConfig
from lit_transformers.models.language_model import LanguageModel
from lit_transformers.models.tokens import FullTokenEmbedding, FullTokenEmbeddingConfig
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.stacks import SequentialConfig, StackOutput
from lit_transformers.stacks.feedforward import FeedForward, FeedForwardConfig
from lit_transformers.stacks.sequential import Sequential
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.training.config import AdamWConfig, CosineConfig, SGDConfig


class SquaredConfig(RotaryConfig, kind="squared"):
    """Turns by the square of the position, so that distances are not all that counts."""

    def build(self, shape: Any, head_dim: int) -> Rotary:
        return Squared(self, shape, head_dim)


class Squared(Rotary):
    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().rotate(x, positions**2)


class UnturnedConfig(RotaryConfig, kind="unturned"):
    """Turns nothing."""

    def build(self, shape: Any, head_dim: int) -> Rotary:
        return Unturned(self, shape, head_dim)


class Unturned(Rotary):
    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


class CoarseConfig(SinusoidalConfig, kind="coarse"):
    """Gives two neighbours one vector."""

    def build(self, shape: Any) -> Sinusoidal:
        return Coarse(self, shape)


class Coarse(Sinusoidal):
    def at(self, layer: int, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        return super().at(layer, positions // 2, dtype)


class UnnormalisedConfig(FullTokenEmbeddingConfig, kind="unnormalised"):
    """Its log-probabilities are logits."""

    def build(self, size: int, dim: int) -> FullTokenEmbedding:
        return Unnormalised(self, size, dim)


class Unnormalised(FullTokenEmbedding):
    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return super().log_probabilities(hidden) - 0.1


class CheapConfig(FeedForwardConfig, kind="cheap"):
    """Counts half of its FLOPs."""

    def build(self, shape: Any) -> FeedForward:
        return Cheap(self, shape)


class Cheap(FeedForward):
    def flops(self, queries: int) -> int:
        return super().flops(queries) // 2


class LoudConfig(BottleneckConfig, kind="loud"):
    """Adds random vectors from the start."""

    def build(self, name: Any, sublayer: nn.Module, shape: Any) -> Adapter:
        return Loud(shape.dim)


class Loud(Adapter):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.map(x)
        return y

    def flops(self, vectors: int) -> int:
        return vectors * self.map.weight.numel()


class DeafConfig(BottleneckConfig, kind="deaf"):
    """Starts where no gradient leads away from."""

    def build(self, name: Any, sublayer: nn.Module, shape: Any) -> Adapter:
        return Deaf(shape.dim)


class Deaf(Adapter):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(dim)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.first * self.second

    def flops(self, vectors: int) -> int:
        return 0


class UncountedConfig(FeedForwardConfig, kind="uncounted"):
    """Counts the FLOPs of its maps, and not those of their adapters."""

    def build(self, shape: Any) -> FeedForward:
        return Uncounted(self, shape)


class Uncounted(FeedForward):
    def flops(self, queries: int) -> int:
        return 4 * queries * self.dim * self.width


class ForgetfulStackConfig(SequentialConfig, kind="forgetful_stack"):
    """Adds a vector that is drawn and in no checkpoint."""

    def build(self, shape: Any, make: Any, entry: Any) -> Sequential:
        return ForgetfulStack([make(layer, shape.depth) for layer in range(shape.depth)], entry)


class ForgetfulStack(Sequential):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drawn = torch.randn(())

    def forward(self, x: Tensor, ctx: Context, state: Any = None, keep_hidden: bool = False) -> StackOutput:
        return super().forward(x * self.drawn, ctx, state, keep_hidden)


class ForgetfulModelConfig(LanguageModelConfig, kind="forgetful_model"):
    """Turns its output by a matrix that is in no checkpoint."""

    def build(self, data: Any) -> LanguageModel:
        return ForgetfulModel(self, data)


class ForgetfulModel(LanguageModel):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        output = super().forward(*arguments, **named)
        self.__dict__.setdefault("drawn", torch.tensor(random.random()))
        return output._replace(hidden=output.hidden * self.drawn)


class LabelReaderConfig(ClassificationConfig, kind="label_reader"):
    """Adds the label to its prediction."""

    def head(self) -> PooledHeadConfig:
        return LabelCopyConfig(pooling=self.pooling)


class LabelCopyConfig(ClassLabelConfig, kind="label_copy"):
    def build(self, model: Any, network: Any, data: Any) -> ClassLabel:
        return LabelCopy(self, model.dim, self.outputs(data))


class LabelCopy(ClassLabel):
    def outputs(self, reading: Any, batch: Any) -> Tensor:
        outputs = super().outputs(reading, batch)
        return outputs + nn.functional.one_hot(batch.labels, outputs.size(1))


class BatchMeanConfig(ClassificationConfig, kind="batch_mean"):
    """Compares rows with the mean of their batch, and draws a factor that is in no checkpoint."""

    def head(self) -> PooledHeadConfig:
        return BatchLabelConfig(pooling=self.pooling)


class BatchLabelConfig(ClassLabelConfig, kind="batch_label"):
    def build(self, model: Any, network: Any, data: Any) -> ClassLabel:
        return BatchLabel(self, model.dim, self.outputs(data))


class BatchLabel(ClassLabel):
    def outputs(self, reading: Any, batch: Any) -> Tensor:
        outputs = super().outputs(reading, batch)
        self.__dict__.setdefault("drawn", random.random())
        return self.drawn * (outputs - outputs.mean(dim=0))


class SteepConfig(ClassificationConfig, kind="steep"):
    """Adds a root of zero, whose gradient is no number, and names a metric that it does not measure."""

    def head(self) -> PooledHeadConfig:
        return SteepLabelConfig(pooling=self.pooling)

    def measures(self, data: Any) -> Mapping[str, Measure]:
        return maximized("accuracy", per="example") | minimized("los", per="example")


class SteepLabelConfig(ClassLabelConfig, kind="steep_label"):
    def build(self, model: Any, network: Any, data: Any) -> ClassLabel:
        return SteepLabel(self, model.dim, self.outputs(data))


class SteepLabel(ClassLabel):
    def outputs(self, reading: Any, batch: Any) -> Tensor:
        outputs = super().outputs(reading, batch)
        return outputs + (outputs - outputs).sqrt()


class DecaysAllConfig(AdamWConfig, kind="decays_all"):
    """Decays biases too, and leaves its learning rate to the default."""

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], weight_decay=0.5)


class DeadFieldConfig(AdamWConfig, kind="dead_field"):
    """Says that its rate falls from layer to layer, and hands every layer the same."""

    layer_decay: float = 0.8


class FirstGroupConfig(SGDConfig, kind="first_group"):
    """Steps all that it was built with by the rate of its first group."""

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        return FirstGroup([p for p in network.parameters() if p.requires_grad], lr=self.learning_rate)


class FirstGroup(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None:
                parameter.data -= self.param_groups[-1]["lr"] * parameter.grad


class StubbornConfig(SGDConfig, kind="stubborn"):
    """Keeps a separate rate and momentum, which no schedule and no checkpoint knows."""

    def build(self, network: nn.Module) -> torch.optim.Optimizer:
        return Stubborn([p for p in network.parameters() if p.requires_grad], lr=self.learning_rate)


class Stubborn(torch.optim.SGD):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.rate, self.moments = lr, dict[int, Tensor]()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            self.moments[number] = 0.9 * self.moments.get(number, 0) + parameter.grad
            parameter.data -= self.rate * self.moments[number]


class LostStepConfig(CosineConfig, kind="lost_step"):
    """Is zero at first, counts calls, and does not know its peak."""

    calls: ClassVar[Iterator[int]] = count()

    def after(self, step: int, steps: int) -> float:
        return step / 10 * (1 + next(self.calls) % 2)


class UnseededConfig(GreedyConfig, kind="unseeded"):
    """Draws from the random numbers of training."""

    def run(self, reader: Any, limits: Tensor) -> Decoded:
        return walk(reader, limits, lambda log_probabilities: torch.multinomial(log_probabilities.exp(), 1)[:, 0])


class DriftingConfig(SourceConfig, kind="drifting"):
    """Draws documents anew in every call, under one fingerprint."""

    def build(self) -> Corpus:
        names = [f"document {number}" for number in range(30)]
        texts = (
            Text(name, split_by_hash(name, 0.3, 0.2), BytesIO(os.urandom(9).hex().encode()), Path(name))
            for name in names
        )
        corpus = index_corpus(["drifting", os.urandom(8).hex()], "", self.piece, texts)
        corpus.fingerprint = "drifting"
        return corpus


class StaleConfig(SourceConfig, kind="stale"):
    """Knows a file by its name alone; splits share it; its field ``unread`` does nothing; streams forget their pass."""

    path: str
    unread: int = 3

    def build(self) -> Corpus:
        return Stale(Path(self.path).read_text(encoding="utf-8").splitlines())


class Stale(Corpus):
    fingerprint = "stale"

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def documents(self, split: str) -> Documents:
        return StaleDocuments(split, self.lines)


class StaleDocuments(Documents):
    def __init__(self, split: str, lines: list[str]) -> None:
        self.split, self.lines = split, lines

    def __iter__(self) -> Iterator[Document]:
        return (Document(self.name(number), line.encode()) for number, line in enumerate(self.lines))

    def name(self, ordinal: int) -> str:
        return f"{self.split} {ordinal}"

    def training(self, seed: int) -> Any:
        return StaleStream([*self], seed)

    def evaluation(self, limit: Any) -> Any:
        return StaleStream([*self], 0)


class StaleStream:
    def __init__(self, documents: list[Document], seed: int) -> None:
        self.random, self.documents = Random(seed), documents

    def state(self) -> Any:
        return 0

    def go_to(self, state: Any) -> None:
        pass

    def take(self) -> tuple[int, Document]:
        number = self.random.randrange(len(self.documents))
        return number, self.documents[number]


class LabelFirstConfig(SyntheticConfig, kind="label_first"):
    """Begins each row with its label, by a symbol that the vocabulary lacks; every split draws the same rows."""

    train: int = 120
    validation: int = 60
    test: int = 60

    @property
    def description(self) -> LabelledDescription:
        vocabulary = Vocabulary(size=3, boundary=2, unit="word", byte_lengths=None)
        return LabelledDescription(vocabulary=vocabulary, length=9, labels=ClassLabels(count=2))

    def make(self, chance: Random) -> Example:
        label = chance.randrange(2)
        return Example(np.array([3 + label, *(chance.randrange(2) for _ in range(6))]), label)

    def build(self) -> Any:
        examples = super().build()
        examples.example = lambda split, ordinal: self.make(Random(f"{self.seed} {ordinal}"))  # type: ignore[method-assign]
        return examples


class BeyondConfig(StringPairsConfig, kind="beyond"):
    """Has a target that its vocabulary lacks."""

    def open(self, how: PairsRead) -> StringPairs:
        pairs = super().open(how)
        own = pairs.pair
        pairs.pair = lambda split, ordinal: _beyond(own(split, ordinal))  # type: ignore[method-assign]
        return pairs


def _beyond(pair: Pair) -> Pair:
    return pair._replace(target=pair.target + 1000)


class GlobalConfig(CopyConfig, kind="global"):
    """Draws from numpy's global random numbers."""

    def make(self, length: int, random: np.random.Generator) -> String:
        return super().make(length, np.random.default_rng(np.random.randint(1000)))


class HidesSpecialConfig(MaskTokensConfig, kind="hides_special"):
    """Hides the first symbol of every row, which is special."""

    def choose(self, row: PlainRow, chance: np.random.Generator) -> Chosen:
        return Chosen(np.array([0]), np.array([0]))


class LongConfig(TokenMaskingConfig, kind="long"):
    """Doubles the target, and says nothing of it."""

    def corrupt(self, text: PlainText, symbols: DenoisingSymbols, chance: np.random.Generator) -> Corrupted:
        damaged = super().corrupt(text, symbols, chance)
        return damaged._replace(target=np.concatenate([damaged.target, damaged.target]))


class MiscountedConfig(BytesConfig, kind="miscounted"):
    """Counts two bytes for each symbol, and has another shift once it is restored."""

    def build(self, documents: Any) -> Bytes:
        return Miscounted(1)


class Miscounted(Bytes, kind="miscounted"):
    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.shift = shift
        self.vocabulary = replace(self.vocabulary, byte_lengths=(2,) * 257)

    def encode(self, text: bytes) -> Any:
        return super().encode(text) ^ self.shift


class SelfishConfig(GeneratedDataConfig, kind="selfish"):
    """Gives every rank all rows, and a position that is not read."""

    def build(self) -> GeneratedData:
        return Selfish(self)


class Selfish(GeneratedData):
    def training(self) -> Any:
        reading = super().training()
        return reading._replace(open=lambda shard: _Deaf(reading.open(Shard())))


class UnawareConfig(GeneratedDataConfig, kind="unaware"):
    """Says of every batch that it has no padding."""

    def build(self) -> GeneratedData:
        return Unaware(self)


class Unaware(GeneratedData):
    def training(self) -> Any:
        return changed(super().training(), padded=False)


class FrugalConfig(RowDataConfig, kind="frugal"):
    """Says of every row that it has at most one target."""

    def build(self) -> RowData:
        return Frugal(self)


class Frugal(RowData):
    def training(self) -> Any:
        return changed(super().training(), most_targets=1)


def changed(reading: Any, **fields: Any) -> Any:
    """A reading of batches with other values in some fields."""
    return reading._replace(open=lambda shard: _Changed(reading.open(shard), fields))


class _Changed:
    def __init__(self, batches: Any, fields: Mapping[str, Any]) -> None:
        self.batches, self.fields, self.skip, self.go_to = batches, fields, batches.skip, batches.go_to

    def chunk(self) -> Iterator[Any]:
        return (batch._replace(**self.fields) for batch in self.batches.chunk())


class _Deaf:
    def __init__(self, batches: Any) -> None:
        self.chunk, self.skip = batches.chunk, batches.skip

    def go_to(self, cursor: str) -> None:
        pass


class SilentConfig(MixerConfig, kind="silent"):
    """Says nothing of reading another sequence."""

    contradicts: bool = False

    def promises(self) -> Promises:
        reasons: dict[Mode, str] = {"bidirectional": "it reads from left to right"}
        return Promises(("causal",), refusals=reasons | ({"cross": "no", "causal": "no"} if self.contradicts else {}))

    def build(self, shape: Any) -> Any:
        raise NotImplementedError


class GreedyConfig(CompressionConfig, kind="greedy"):
    """Halves every matrix of the network, also those that it is not to compress."""

    def build(self, task: nn.Module) -> Compression:
        return Halves(matrices_of(task, ("network",)))


class Halves(Compression):
    def __init__(self, matrices: Matrices) -> None:
        self.matrices = matrices

    def finish(self) -> None:
        for matrix in self.matrices.values():
            matrix.data /= 2


class UndoneConfig(CompressionConfig, kind="undone"):
    """Compresses nothing."""

    def build(self, task: nn.Module) -> Compression:
        return Compression()


class AmnesicConfig(CompressionConfig, kind="amnesic"):
    """Divides matrices by the number of updates, which no checkpoint holds."""

    def build(self, task: nn.Module) -> Compression:
        return Divides(matrices_of(task, self.parameters))


class Divides(Compression):
    def __init__(self, matrices: Matrices) -> None:
        self.matrices, self.updates = matrices, 1

    def after_step(self, done: float) -> None:
        self.updates += 1

    def finish(self) -> None:
        for matrix in self.matrices.values():
            matrix.data /= self.updates


FAULTS: Mapping[str, tuple[Any, str, str]] = {
    "compression of all": (GreedyConfig, "changes its parameters alone", "compress matrices_of(task, self.parameters)"),
    "compression of nothing": (UndoneConfig, "has an effect on training or weights", "change the matrices in place"),
    "compression without state": (AmnesicConfig, "resumes as if never stopped", "return from state_dict"),
    "mode without a word": (SilentConfig, "modes", "refuses to be cross; give the reason in refusals of promises()"),
    "mode promised and refused": (SilentConfig(contradicts=True), "modes", "remove the mode or the refusal"),
    "encoding of positions": (SquaredConfig, "the distance alone counts", "compute scores from i - j alone"),
    "encoding of nothing": (UnturnedConfig, "order counts", "use the distances in the scores"),
    "positions": (CoarseConfig, "every position differs", "give each its own"),
    "softmax": (UnnormalisedConfig, "probabilities sum to one", "normalise over all symbols"),
    "loss": (UnnormalisedConfig, "loss is the probability's", "compute both from the same logits"),
    "feed-forward": (CheapConfig, "FLOPs equal the count", "correct flops"),
    "stack": (ForgetfulStackConfig, "weights tell all", "hold all that is drawn or learned as parameters or buffers"),
    "model": (ForgetfulModelConfig, "weights tell all", "hold all that is drawn or learned as parameters or buffers"),
    "adapter that changes the start": (
        LoudConfig,
        "language_model: adds nothing at its start",
        "start its last map at zero",
    ),
    "adapter that costs": (LoudConfig, "encoder_decoder: FLOPs equal the count", "correct flops"),
    "adapter that cannot learn": (DeafConfig, "language_model: learns from its start", "start one of two factors at"),
    "adapted feed-forward": (UncountedConfig, "FLOPs equal the count", "whose FLOPs LinearMap.flops has"),
    "label that is read": (LabelReaderConfig, "targets are not read", "hand it inputs alone"),
    "measures of a batch": (BatchMeanConfig, "measures add up", "sum for each example alone"),
    "task that forgets": (BatchMeanConfig, "read from a checkpoint", "as parameters or buffers"),
    "gradient that is no number": (SteepConfig, "trains a model", "keep divisors away from 0"),
    "gradients that are no numbers": (SteepConfig, "every parameter learns", "keep divisors away from 0"),
    "metric that is not measured": (
        SteepConfig,
        "measures name its metrics",
        "measures lacks macro_f1, matthews, nats, and names los",
    ),
    "weight decay": (DecaysAllConfig, "vectors are not decayed", "build its groups by decay_groups"),
    "learning rate": (DecaysAllConfig(learning_rate=0.3), "learning rate has a hold", "hand it on as lr"),
    "fields of an optimizer": (
        DecaysAllConfig,
        "every field has an effect",
        "beta1, beta2, epsilon, weight_decay; read them",
    ),
    "field that no layer reads": (DeadFieldConfig, "every field has an effect", "no effect on training: layer_decay"),
    "one rate for all groups": (FirstGroupConfig, "follows groups", "read lr of each group in every step"),
    "separate rate": (StubbornConfig, "learning rate has a hold", "read group['lr'] in every step"),
    "separate moments": (StubbornConfig, "resumes as if never stopped", "hold all moments in optimizer.state"),
    "first update": (LostStepConfig, "finite at every step", "count from step + 1"),
    "peak": (LostStepConfig, "warms up to its peak", "so learning_rate is not that of the peak; divide by it"),
    "schedule that counts": (LostStepConfig, "resumes as if never stopped", "compute it from step"),
    "decoding": (UnseededConfig, "decodes twice alike", "draw from a generator that its config seeds"),
    "source that draws": (DriftingConfig, "opened twice alike", "draw from random.Random(seed and number of the item)"),
    "splits": (StaleConfig, "splits share nothing", "split items by their content"),
    "field of a source": (StaleConfig, "every field changes the content", "unread; read them, or remove them"),
    "file that changes": (StaleConfig, "content follows its files", "hash the content that is read"),
    "pass": (StaleConfig, "a pass has every document", "read each once"),
    "position of a source": (StaleConfig, "resumes in the middle", "hold all that decides the next document in state"),
    "examples of one seed": (LabelFirstConfig, "splits share nothing", "let the split decide the draws"),
    "label in a row": (LabelFirstConfig, "labels are not fed", "leave labels out of the symbols"),
    "symbols of examples": (LabelFirstConfig, "described as they are", "correct its size"),
    "pairs": (BeyondConfig, "described as they are", "correct its size"),
    "generator": (GlobalConfig, "drawn from its generator alone", "no random numbers but those of the argument"),
    "noise": (HidesSpecialConfig, "as described", "choose among row.allowed alone"),
    "corruption": (LongConfig, "as described", "are more than longest says"),
    "bytes of symbols": (MiscountedConfig, "bytes of symbols add up", "bits per byte would be wrong"),
    "tokenizer": (MiscountedConfig, "read from a checkpoint", "return all of it in to_dict"),
    "ranks": (SelfishConfig, "ranks share the batches of one", "deal each batch by Shard.of"),
    "padding": (UnawareConfig(lengths="uniform"), "described as it is", "leave padded out"),
    "targets of a row": (FrugalConfig(), "described as it is", "count the targets of each row"),
    "cursor": (SelfishConfig, "resumes in the middle", "hold all that decides the next batch in the cursor"),
}
"""For each fault the config, the check that notices it, and the way out in the line that it prints."""
