"""The sources of starting weights: a table of kinds, for the fields of ``start``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

from lit_transformers.compression.narrow import NarrowConfig
from lit_transformers.config import Config, Plain, Positive, Seed

__all__ = [
    "ConvertedWeightsConfig",
    "FileWeightsConfig",
    "ImportedWeightsConfig",
    "MadeWeightsConfig",
    "SameWeightsConfig",
    "Share",
    "StartConfig",
    "StartSeed",
    "WeightSourceConfig",
]

StartSeed = Literal["follow"] | Seed
"""The seed of a stage: the seed of the run that starts from it, or a fixed number."""

Share = Literal["mean", "first", "last"]
"""How a weight that layers share is computed from the layers of a network that share none."""


class WeightSourceConfig(Config):
    """Base of every source of weights. A path without fields is a file; the fields of a mapping decide its kind."""

    short_forms: ClassVar[Sequence[Plain]] = ({"type": "string"}, {"type": "object", "not": {"required": ["kind"]}})

    @classmethod
    def spelled_out(cls, plain: Plain) -> Plain:
        if isinstance(plain, str) and plain not in cls.kinds:
            return {"kind": "file", "path": plain}
        if isinstance(plain, Mapping) and "kind" not in plain and cls.kinds:
            return {"kind": "run" if "run" in plain else "file", **plain}
        return plain


class FileWeightsConfig(WeightSourceConfig, kind="file"):
    """A file of weights.

    path: the file of an import (weights.safetensors) or of another run (checkpoint.ckpt), or a folder with one of them,
    relative to LIT_WEIGHTS or to the working folder.
    """

    path: str


class MadeWeightsConfig(WeightSourceConfig):
    """Base of the sources whose file of weights is made once below LIT_CACHE, from other weights."""


class ImportedWeightsConfig(MadeWeightsConfig, kind="import"):
    """A folder of Hugging Face, read like by the command import.

    path: the folder with config.json and the weights, relative to LIT_WEIGHTS or to the working folder.
    architecture: for a config.json that names no model_type.
    """

    path: str
    architecture: str | None = None


class ConvertedWeightsConfig(MadeWeightsConfig, kind="convert"):
    """The weights of another source for a changed network, made like by the command convert.

    source: a file, an import, or another conversion.
    set: values at paths of a run's config, all below model: {"model.mixer": "window"}. A new kind of
    mixer keeps the fields that both kinds have.
    length: symbols of the longest row; None: unchanged.
    seed: of new weights.
    """

    source: WeightSourceConfig
    set: dict[str, Plain] = field(default_factory=dict)
    length: Positive | None = None
    seed: Seed = 0

    def conflicts(self) -> Iterator[str]:
        if self.source.kind in ("run", "network"):
            yield (
                f"source cannot be of kind {self.source.kind}; name the checkpoint.ckpt of a run by its path, or set "
                "source to an import"
            )


class SameWeightsConfig(WeightSourceConfig, kind="network"):
    """The source of the network, for the heads that were trained with it."""


class StartConfig(Config):
    """The weights that training starts from or learns from. Parts without a source are initialised as usual.

    A path without fields is the file of all parts except the teacher.

    network: the source of the network.
    heads: the source of all other parts, heads and further networks; ``network`` for the source of the network.
    layers: the layers of ``network``, counted from 1, that become the run's layers in this order; the others are
    omitted, and ``model.depth`` is the number of those kept. Null: all of them.
    narrow: how the heads and the feed-forward channels are chosen that a narrower run keeps of each layer of
    ``network``; ``model.heads``, ``model.mixer.head_dim`` and ``model.feedforward.width`` state how many. Null: the
    networks have the same widths.
    share: how the weights that the run's layers share (``model.stack``: shared or universal) are computed from the
    layers of ``network``, which share none. mean: of the layers that share them; first, last: one of these layers.
    Null: the layers of both share alike.
    factorise: svd: the embeddings of ``model.embedding_dim`` channels and the map to ``model.dim`` are a truncated
    singular value decomposition of the embeddings of ``network``, which are as wide as its layers. Null: both networks
    have embeddings of the same width.
    head: if heads are from a run of several tasks, the data source whose head the run's head starts from.
    teacher: the source of the trained network with its heads that ``task.distillation`` learns from.
    """

    short_forms: ClassVar[Sequence[Plain]] = ({"type": "string"},)

    network: WeightSourceConfig | None = None
    heads: WeightSourceConfig | None = None
    layers: tuple[Positive, ...] | None = None
    narrow: NarrowConfig | None = None
    share: Share | None = None
    factorise: Literal["svd"] | None = None
    head: str | None = None
    teacher: WeightSourceConfig | None = None

    @classmethod
    def spelled_out(cls, plain: Plain) -> Plain:
        if plain is None:
            return {}
        return {"network": plain, "heads": plain} if isinstance(plain, str) else plain

    def conflicts(self) -> Iterator[str]:
        if isinstance(self.network, SameWeightsConfig):
            yield "network cannot start from the source of the network; set network to a file, an import or a run"
        if isinstance(self.teacher, SameWeightsConfig):
            yield "teacher is a trained network with its heads; set teacher to a run, a file or an import"
        if isinstance(self.heads, SameWeightsConfig) and self.network is None:
            yield "heads start from the source of the network, but network has none; set network to another source"
        if self.layers is not None and self.network is None:
            yield "layers are chosen from the source of the network, which has none; set network, or drop layers"
        if self.narrow is not None and self.network is None:
            yield "narrow chooses from the source of the network, which has none; set network, or drop narrow"
        if self.narrow is not None and self.narrow.score == "importance" and self.heads is None:
            yield "narrow.score importance needs the loss of trained heads; set heads: network, or score: magnitude"
        if (self.share is not None or self.factorise is not None) and self.network is None:
            yield "share and factorise change the weights of network, which has no source; set network, or drop them"
        if self.narrow is not None and (self.share is not None or self.factorise is not None):
            yield "narrow combines with neither share nor factorise; do one of them in a run that this one starts from"
        if self.head is not None and self.heads is None:
            yield f"head is {self.head!r}, but heads start anew; set heads to their source, or drop head"

    @property
    def makes_smaller(self) -> bool:
        """Whether the run's network is smaller than the network of its source."""
        return any(part is not None for part in (self.layers, self.narrow, self.share, self.factorise))

    def sources(self) -> dict[str, WeightSourceConfig]:
        """Returns the sources, by the names of their fields. ``network`` as the source of heads is replaced by the
        source of the network."""
        heads = self.network if isinstance(self.heads, SameWeightsConfig) else self.heads
        parts = {"network": self.network, "heads": heads, "teacher": self.teacher}
        return {part: source for part, source in parts.items() if source is not None}
