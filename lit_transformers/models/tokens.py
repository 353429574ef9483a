"""Token embeddings and softmax layers, which often share their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, ConfigError, Positive, table
from lit_transformers.host import reads_at_once
from lit_transformers.precision import full_precision


class TokenEmbeddingConfig(Config):
    """Base of every config of embedding and softmax; the table TOKENS lists the kinds.

    tied: input and output use the same weights (arXiv:1608.05859); scaled: embeddings are multiplied by sqrt(dim)
    (arXiv:1706.03762, section 3.4).
    """

    tied: bool = True
    scaled: bool = True

    def build(self, size: int, dim: int) -> TokenEmbedding:
        """Builds the embedding and softmax of a vocabulary of ``size`` symbols and a network of width ``dim``."""
        raise NotImplementedError

    def fewest_symbols(self) -> int:
        """Hook: returns the size of the smallest vocabulary that this can be built for. By default it is 1."""
        return 1

    def shrunk(self, size: int) -> dict[str, Any]:
        """Hook: returns the overrides with which this fits a vocabulary of ``size`` symbols and a narrow network."""
        return {}


class TokenEmbedding(nn.Module, ABC):
    """The first and the last layer of a network over symbols."""

    def __init__(self, config: TokenEmbeddingConfig, dim: int) -> None:
        super().__init__()
        self.factor = dim**0.5 if config.scaled else 1.0

    def embed(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return self.look_up(symbols) * self.factor

    @abstractmethod
    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Returns the embeddings of symbols, without the factor sqrt(dim)."""

    @abstractmethod
    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Returns the log probability of every symbol in the vocabulary, in float32."""

    def scores(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Hook: returns numbers in float32 whose softmax is the probability of every symbol. By default these are log
        probabilities."""
        return self.log_probabilities(hidden)

    @abstractmethod
    def nll(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Returns -log p of each target, in float32; 0 where the target is IGNORED."""

    def smoothed(
        self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"], smoothing: float
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """Returns the loss of each target with label smoothing (arXiv:1512.00567, section 7), and its ``nll``, both in
        float32 and 0 where the target is IGNORED.

        The loss is (1 - smoothing) times -log p of the target plus ``smoothing`` times the mean of -log p over the
        vocabulary. An adaptive softmax then has to compute every symbol, which loses its advantage.
        """
        if smoothing == 0:
            nats = self.nll(hidden, targets)
            return nats, nats

        def loss_and_nll(hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n 2"]:
            log_probabilities = self.log_probabilities(hidden)
            nats = F.nll_loss(log_probabilities, targets, ignore_index=IGNORED, reduction="none")
            uniform = -log_probabilities.mean(dim=-1).masked_fill(targets == IGNORED, 0.0)
            return torch.stack([torch.lerp(nats, uniform, smoothing), nats], dim=-1)

        loss, nats = of_targets(loss_and_nll, hidden, targets).unbind(dim=-1)
        return loss, nats

    @abstractmethod
    def flops(self, queries: int) -> int:
        """Forward FLOPs of the output for one sequence."""

    @abstractmethod
    def softmax_only(self) -> list[nn.Parameter]:
        """Returns the parameters that embeddings do not use, which are not trained where no symbol is predicted."""


def of_targets(
    loss_function: Callable[[Float[Tensor, "n d"], Int[Tensor, " n"]], Float[Tensor, "n ..."]],
    hidden: Float[Tensor, "*n d"],
    targets: Int[Tensor, "*n"],
) -> Tensor:
    """Returns ``loss_function`` of every vector and its target, 0 where the target is IGNORED.

    Ignored targets are left out, so that no logits are computed for them, except on a device, where counting the others
    would mean waiting for it.
    """
    vectors, flat_targets = hidden.flatten(0, -2), targets.flatten()
    indices = (flat_targets != IGNORED).nonzero().squeeze(1) if reads_at_once(vectors) else None
    if indices is None or len(indices) == len(flat_targets):
        return loss_function(vectors, flat_targets).unflatten(0, targets.shape)
    values = loss_function(vectors.index_select(0, indices), flat_targets[indices])
    return (
        values.new_zeros(len(flat_targets), *values.shape[1:])
        .index_copy(0, indices, values)
        .unflatten(0, targets.shape)
    )


class FullTokenEmbeddingConfig(TokenEmbeddingConfig, kind="full"):
    """One vector and one logit for each symbol. bias: whether the softmax has one, which GPT-2's has not."""

    bias: bool = True

    def build(self, size: int, dim: int) -> FullTokenEmbedding:
        return FullTokenEmbedding(self, size, dim)


class FullTokenEmbedding(TokenEmbedding):
    """An embedding table and a linear softmax layer."""

    def __init__(self, config: FullTokenEmbeddingConfig, size: int, dim: int) -> None:
        super().__init__(config, dim)
        self.table = nn.Embedding(size, dim)
        self.logits = nn.Linear(dim, size, bias=config.bias)
        if config.tied:
            self.logits.weight = self.table.weight

    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        vectors: Tensor = self.table(symbols)
        return vectors

    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.scores(hidden).log_softmax(dim=-1)

    def scores(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return full_precision(self.logits(hidden))

    def nll(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        def cross_entropy(hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
            return F.cross_entropy(self.scores(hidden), targets, ignore_index=IGNORED, reduction="none")

        return of_targets(cross_entropy, hidden, targets)

    def flops(self, queries: int) -> int:
        return 2 * queries * self.table.num_embeddings * self.table.embedding_dim

    def softmax_only(self) -> list[nn.Parameter]:
        return [p for p in self.logits.parameters() if p is not self.table.weight]


class AdaptiveTokenEmbeddingConfig(TokenEmbeddingConfig, kind="adaptive"):
    """Frequent symbols get wide vectors, rare ones narrow: adaptive softmax (Grave et al. 2017, arXiv:1609.04309)
    and adaptive input (Baevski and Auli 2019, arXiv:1809.10853).

    cutoffs: ranks of symbols at which the next cluster begins; shrink: how many times narrower each next one is.
    """

    cutoffs: tuple[Positive, ...] = (20_000, 40_000, 200_000)
    shrink: Positive = 4

    def build(self, size: int, dim: int) -> AdaptiveTokenEmbedding:
        if not self.cutoffs or list(self.cutoffs) != sorted(set(self.cutoffs)) or self.cutoffs[-1] >= size:
            raise ConfigError(f"cutoffs must rise and stay below the {size} symbols, not {self.cutoffs}", "cutoffs")
        if dim // self.shrink ** len(self.cutoffs) == 0:
            raise ConfigError(f"the last cluster of {len(self.cutoffs)} would have no channel left of {dim}", "shrink")
        return AdaptiveTokenEmbedding(self, size, dim)

    def fewest_symbols(self) -> int:
        return max(self.cutoffs, default=0) + 1

    def shrunk(self, size: int) -> dict[str, Any]:
        return {"cutoffs": [size // 3, 2 * size // 3], "shrink": 2}


class AdaptiveTokenEmbedding(TokenEmbedding):
    """torch's adaptive softmax; if tied, embeddings are its tables, mapped back through its own projections.

    Symbols must be numbered by decreasing frequency.
    """

    def __init__(self, config: AdaptiveTokenEmbeddingConfig, size: int, dim: int) -> None:
        super().__init__(config, dim)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(dim, size, list(config.cutoffs), float(config.shrink))
        self.edges = [0, *config.cutoffs, size]
        self.cluster_embeddings: nn.ModuleList | None = None
        if not config.tied:
            widths = [dim // config.shrink**cluster for cluster in range(len(config.cutoffs) + 1)]
            sizes = [end - start for start, end in zip(self.edges, self.edges[1:], strict=False)]
            self.cluster_embeddings = nn.ModuleList(
                nn.Sequential(nn.Embedding(count, width), nn.Linear(width, dim, bias=False))
                for count, width in zip(sizes, widths, strict=True)
            )

    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """Returns the embeddings of symbols, without the factor sqrt(dim). On a device every cluster reads all symbols,
        for telling its own apart would mean waiting."""
        flat = symbols.flatten()
        vectors = self.softmax.head.weight.new_zeros(flat.size(0), self.softmax.in_features)
        for cluster, (start, end) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            members = (flat >= start) & (flat < end)
            if reads_at_once(flat):
                index = members.nonzero().squeeze(1)
                vectors = vectors.index_copy(0, index, self.of_cluster(cluster, flat[index] - start).to(vectors.dtype))
            else:
                read = self.of_cluster(cluster, (flat - start).clamp(0, end - start - 1))
                vectors = torch.where(members[:, None], read.to(vectors.dtype), vectors)
        return vectors.view(*symbols.shape, -1)

    def of_cluster(self, cluster: int, members: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """Returns the unscaled embeddings of members of a cluster, which are numbered from its first."""
        if self.cluster_embeddings is not None:
            vectors: Tensor = self.cluster_embeddings[cluster](members)
            return vectors
        if cluster == 0:
            return F.embedding(members, self.softmax.head.weight)
        narrow, wide = self.softmax.tail[cluster - 1].children()
        return F.embedding(members, wide.weight) @ narrow.weight  # type: ignore[arg-type, operator]

    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.softmax.log_prob(full_precision(hidden.flatten(0, -2))).unflatten(0, hidden.shape[:-1])

    def nll(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return of_targets(self.cross_entropy, hidden, targets)

    def cross_entropy(self, hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Returns -log p of each target, 0 where it is IGNORED. A device is waited for once: how many targets each
        cluster has follows from the text. A cluster without any takes part all the same, so that its weights have a
        gradient, of zeros, in every update and on every rank."""
        vectors = full_precision(hidden)
        cluster, members = self.members(targets)
        tails = vectors.new_zeros(len(targets))
        for tail, start, index in zip(self.softmax.tail, self.edges[1:], members[1:], strict=False):
            log_probabilities = tail(vectors.index_select(0, index)).log_softmax(dim=1)
            of_targets = log_probabilities.gather(1, (targets[index] - start)[:, None])[:, 0]
            tails = tails.index_copy(0, index, of_targets.to(tails.dtype))
        in_head = torch.where(cluster == 0, targets, self.edges[1] - 1 + cluster).masked_fill(targets == IGNORED, 0)
        heads = self.softmax.head(vectors).log_softmax(dim=1).gather(1, in_head[:, None])[:, 0]
        return -(tails + heads).masked_fill(targets == IGNORED, 0.0)

    def members(self, targets: Int[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Sequence[Int[Tensor, " m"]]]:
        """Returns the number of the cluster of each target, that after the last one where it is IGNORED, and the places
        of the targets of each cluster."""
        edges = self.edges[1:-1]
        cluster = sum((targets >= edge).long() for edge in edges) + torch.zeros_like(targets)
        cluster = cluster.masked_fill(targets == IGNORED, len(edges) + 1)
        counts = torch.stack([(cluster == number).sum() for number in range(len(edges) + 2)]).tolist()
        return cluster, cluster.argsort(stable=True).split(counts)[:-1]

    def flops(self, queries: int) -> int:
        """Forward FLOPs of the head, which every token uses; how often the clusters are used depends on the text."""
        dim, head = self.softmax.in_features, self.softmax.head.out_features
        return 2 * queries * dim * head

    def softmax_only(self) -> list[nn.Parameter]:
        return [] if self.cluster_embeddings is None else [*self.softmax.parameters()]


TOKENS = table(TokenEmbeddingConfig, FullTokenEmbeddingConfig, AdaptiveTokenEmbeddingConfig)
