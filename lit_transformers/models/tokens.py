"""Symbols to vectors and back: embeddings and softmax layers, which often share their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, ConfigError, Positive, table
from lit_transformers.mixer import full_precision


class TokensConfig(Config):
    """Base of every config of embedding and softmax; the table TOKENS lists the kinds.

    tied: input and output use the same weights (arXiv:1608.05859); scaled: embeddings are multiplied by sqrt(dim)
    (arXiv:1706.03762, section 3.4).
    """

    tied: bool = True
    scaled: bool = True

    def build(self, size: int, dim: int) -> Tokens:
        """For a vocabulary of ``size`` symbols and a network of width ``dim``."""
        raise NotImplementedError


class Tokens(nn.Module, ABC):
    """The first and the last layer of a network over symbols."""

    def __init__(self, config: TokensConfig, dim: int) -> None:
        super().__init__()
        self.factor = dim**0.5 if config.scaled else 1.0

    def embed(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return self.look_up(symbols) * self.factor

    @abstractmethod
    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """The vectors of symbols, unscaled."""

    @abstractmethod
    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Of every symbol, in float32."""

    @abstractmethod
    def nats(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """-log p of each target, in float32; 0 where it is IGNORED."""

    def smoothed(
        self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"], smoothing: float
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """The loss of each target with label smoothing (arXiv:1512.00567, section 7), and ``nats``: in float32, both 0
        where it is IGNORED.

        The loss is (1 - smoothing) of -log p of the target and ``smoothing`` of its mean over the vocabulary. So an
        adaptive softmax is asked for every symbol, which costs what it was to save.
        """
        if smoothing == 0:
            nats = self.nats(hidden, targets)
            return nats, nats

        def both(hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n 2"]:
            log_probabilities = self.log_probabilities(hidden)
            nats = F.nll_loss(log_probabilities, targets, ignore_index=IGNORED, reduction="none")
            uniform = -log_probabilities.mean(dim=-1).masked_fill(targets == IGNORED, 0.0)
            return torch.stack([torch.lerp(nats, uniform, smoothing), nats], dim=-1)

        loss, nats = of_targets(both, hidden, targets).unbind(dim=-1)
        return loss, nats

    @abstractmethod
    def flops(self, queries: int) -> int:
        """Forward FLOPs of the output for one sequence."""

    @abstractmethod
    def softmax_only(self) -> list[nn.Parameter]:
        """Parameters that embeddings do not read: an objective that predicts no symbol leaves them as they are."""


def of_targets(
    rate: Callable[[Float[Tensor, "n d"], Int[Tensor, " n"]], Float[Tensor, "n ..."]],
    hidden: Float[Tensor, "*n d"],
    targets: Int[Tensor, "*n"],
    everywhere: bool = False,
) -> Tensor:
    """What ``rate`` makes of every vector and its target, 0 where that is IGNORED.

    No logits are computed for what is ignored, save on a device, which would have to be waited for to count the rest.
    everywhere: there too, for a ``rate`` that knows no IGNORED.
    """
    vectors, wanted = hidden.flatten(0, -2), targets.flatten()
    scored = (wanted != IGNORED).nonzero().squeeze(1) if everywhere or vectors.device.type == "cpu" else None
    if scored is None or len(scored) == len(wanted):
        return rate(vectors, wanted).unflatten(0, targets.shape)
    rated = rate(vectors.index_select(0, scored), wanted[scored])
    return rated.new_zeros(len(wanted), *rated.shape[1:]).index_copy(0, scored, rated).unflatten(0, targets.shape)


class FullTokensConfig(TokensConfig, kind="full"):
    """One vector and one logit for each symbol."""

    def build(self, size: int, dim: int) -> FullTokens:
        return FullTokens(self, size, dim)


class FullTokens(Tokens):
    """An embedding table and a linear softmax layer with a bias."""

    def __init__(self, config: FullTokensConfig, size: int, dim: int) -> None:
        super().__init__(config, dim)
        self.table = nn.Embedding(size, dim)
        self.logits = nn.Linear(dim, size)
        if config.tied:
            self.logits.weight = self.table.weight

    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        vectors: Tensor = self.table(symbols)
        return vectors

    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return full_precision(self.logits(hidden)).log_softmax(dim=-1)

    def nats(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        def found(hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
            logits = full_precision(self.logits(hidden))
            return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")

        return of_targets(found, hidden, targets)

    def flops(self, queries: int) -> int:
        return 2 * queries * self.table.num_embeddings * self.table.embedding_dim

    def softmax_only(self) -> list[nn.Parameter]:
        return [p for p in self.logits.parameters() if p is not self.table.weight]


class AdaptiveTokensConfig(TokensConfig, kind="adaptive"):
    """Frequent symbols get wide vectors, rare ones narrow: adaptive softmax (Grave et al. 2017, arXiv:1609.04309)
    and adaptive input (Baevski and Auli 2019, arXiv:1809.10853).

    cutoffs: ranks of symbols at which a next cluster begins; shrink: how many times narrower each one is.
    """

    cutoffs: tuple[Positive, ...] = (20_000, 40_000, 200_000)
    shrink: Positive = 4

    def build(self, size: int, dim: int) -> AdaptiveTokens:
        if not self.cutoffs or list(self.cutoffs) != sorted(set(self.cutoffs)) or self.cutoffs[-1] >= size:
            raise ConfigError(f"cutoffs must rise and stay below the {size} symbols, not {self.cutoffs}", "cutoffs")
        if dim // self.shrink ** len(self.cutoffs) == 0:
            raise ConfigError(f"the last cluster of {len(self.cutoffs)} would have no channel left of {dim}", "shrink")
        return AdaptiveTokens(self, size, dim)


class AdaptiveTokens(Tokens):
    """torch's adaptive softmax; tied, the input reads its tables and projects them back through its projections.

    Symbols must be numbered by falling frequency.
    """

    def __init__(self, config: AdaptiveTokensConfig, size: int, dim: int) -> None:
        super().__init__(config, dim)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(dim, size, list(config.cutoffs), float(config.shrink))
        self.edges = [0, *config.cutoffs, size]
        self.own: nn.ModuleList | None = None
        if not config.tied:
            widths = [dim // config.shrink**cluster for cluster in range(len(config.cutoffs) + 1)]
            sizes = [end - start for start, end in zip(self.edges, self.edges[1:], strict=False)]
            self.own = nn.ModuleList(
                nn.Sequential(nn.Embedding(count, width), nn.Linear(width, dim, bias=False))
                for count, width in zip(sizes, widths, strict=True)
            )

    def look_up(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        flat = symbols.flatten()
        vectors = self.softmax.head.weight.new_zeros(flat.size(0), self.softmax.in_features)
        for cluster, (start, end) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            here = ((flat >= start) & (flat < end)).nonzero().squeeze(1)
            vectors = vectors.index_copy(0, here, self.of_cluster(cluster, flat[here] - start).to(vectors.dtype))
        return vectors.view(*symbols.shape, -1)

    def of_cluster(self, cluster: int, members: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """The vectors of a cluster's members, numbered from its first, unscaled."""
        if self.own is not None:
            vectors: Tensor = self.own[cluster](members)
            return vectors
        if cluster == 0:
            return F.embedding(members, self.softmax.head.weight)
        narrow, wide = self.softmax.tail[cluster - 1].children()
        return F.embedding(members, wide.weight) @ narrow.weight  # type: ignore[arg-type, operator]

    def log_probabilities(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.softmax.log_prob(full_precision(hidden.flatten(0, -2))).unflatten(0, hidden.shape[:-1])

    def nats(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        def found(hidden: Float[Tensor, "n d"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
            chosen = full_precision(hidden)
            return -self.softmax(chosen, targets).output if len(targets) else chosen.new_zeros(0)

        return of_targets(found, hidden, targets, everywhere=True)

    def flops(self, queries: int) -> int:
        """Of the head, which every token asks; how often the clusters are asked depends on the text."""
        dim, head = self.softmax.in_features, self.softmax.head.out_features
        return 2 * queries * dim * head

    def softmax_only(self) -> list[nn.Parameter]:
        return [] if self.own is None else [*self.softmax.parameters()]


TOKENS = table(TokensConfig, FullTokensConfig, AdaptiveTokensConfig)
