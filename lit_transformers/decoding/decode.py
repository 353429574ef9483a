"""Decodes the outputs of an encoder-decoder: greedy, sampling, and beam search, for all rows of a batch at once.

The loops use only the decoder and its state, without a separate cache. Rows that have ended are removed from the batch,
many at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat, Positive, table
from lit_transformers.decoding.sampling import SamplingConfig, best, choose
from lit_transformers.encodings.positions import PositionError
from lit_transformers.host import reads_at_once
from lit_transformers.mixer import LengthError
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.capabilities import PairNetwork
from lit_transformers.observable import ModuleCall, recorded_calls
from lit_transformers.precision import full_precision
from lit_transformers.space import Interval, Space

LEAVE = 0.75
"""Ended rows are removed when no more than this share still runs, because the state of the others is copied then."""
PATIENCE = 8
"""Steps between two checks of how many rows still run, on devices where each check forces a synchronisation."""
TRACE = 1e-9
"""The least attention that a source symbol counts as having received, for coverage."""


class DecodingConfig(Config):
    """Base of every way to decode; the table DECODINGS lists the kinds.

    ratio, extra: an output ends after ratio * source + extra symbols at the latest, rounded down, the source's boundary
    among them (arXiv:1706.03762, section 6.1: 1 and 50), or where the decoder's weights reach no further.
    cache: the decoder's state is kept from symbol to symbol; else the whole prefix is read again for every symbol.
    """

    ratio: NonNegativeFloat = 1.0
    extra: NonNegative = 50
    cache: bool = True

    def run(self, reader: PairReader, limits: Int[Tensor, " b"]) -> Decoded:
        """Decodes until every row has ended or has reached its limit in symbols."""
        raise NotImplementedError

    def limits(self, lengths: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Returns the most symbols of the output of each source, given the lengths of the sources."""
        return ((self.ratio * lengths).long() + self.extra).clamp(min=1)


class GreedyConfig(DecodingConfig, kind="greedy"):
    """Greedy decoding: the likeliest symbol at each step."""

    def run(self, reader: PairReader, limits: Int[Tensor, " b"]) -> Decoded:
        return walk(reader, limits, lambda log_probabilities: log_probabilities.argmax(dim=-1))


class SampledConfig(DecodingConfig, kind="sampling"):
    """Samples symbols from the network's distribution. A row's output depends on the other rows of its batch, which
    draw from the same random numbers."""

    sampling: SamplingConfig = SamplingConfig()

    def run(self, reader: PairReader, limits: Int[Tensor, " b"]) -> Decoded:
        generator = self.sampling.generator(limits.device)
        return walk(reader, limits, partial(choose, config=self.sampling, generator=generator))


class BeamConfig(DecodingConfig, kind="beam"):
    """Beam search with ``beams`` hypotheses for each row; the output maximises log P(Y|X) / lp(Y) + cp(X; Y).

    length_penalty: alpha of lp = ((5 + |Y|) / 6)^alpha (GNMT, arXiv:1609.08144, equation 14), or where ``lengths`` is
    ``power`` of lp = |Y|^alpha, as in fairseq and transformers; |Y| counts the boundary. coverage: beta of cp, the same
    equation, of the mean over the heads of the last layer's cross mixer.
    until: a row ends when no running hypothesis can still win at any length (``sure``), or when as many as ``beams``
    have ended (``full``: earlier, and at times with a worse output). A hypothesis cut at the limit counts as ended.
    """

    space: ClassVar[Space] = {"length_penalty": Interval(0.0, 1.5)}

    beams: Positive = 4
    length_penalty: NonNegativeFloat = 0.6
    lengths: Literal["gnmt", "power"] = "gnmt"
    coverage: NonNegativeFloat = 0.0
    until: Literal["sure", "full"] = "sure"

    def run(self, reader: PairReader, limits: Int[Tensor, " b"]) -> Decoded:
        coverage = Coverage(self.coverage, reader, self.beams) if self.coverage else None
        return BeamSearch(self, reader, limits, coverage).run()

    def penalty(self, length: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Returns the length penalty lp for outputs of ``length`` symbols."""
        penalty: Tensor = ((5 + length) / 6 if self.lengths == "gnmt" else length) ** self.length_penalty
        return penalty


DECODINGS = table(DecodingConfig, GreedyConfig, SampledConfig, BeamConfig)


class Decoded(NamedTuple):
    """The output of each row, without boundaries, and its score: the log-probability, that of the end included, and
    for beam search with the penalties applied."""

    symbols: list[list[int]]
    scores: Float[Tensor, " b"]


@torch.no_grad()
def decode(
    network: PairNetwork,
    source: Int[Tensor, "b s"],
    source_padding_mask: Bool[Tensor, "b s"] | None,
    config: DecodingConfig,
    boundary: int,
) -> Decoded:
    """Decodes one output for every row of the source. ``boundary`` begins and ends a target.

    Raises ConfigError where the decoder cannot be read symbol by symbol, or where its attention cannot be observed.
    """
    if config.cache:
        require_streams(network)
    limits = config.limits(lengths_of(source, source_padding_mask))
    if len(limits) == 0:
        return Decoded([], torch.zeros(0, device=source.device))
    has_coverage = isinstance(config, BeamConfig) and config.coverage > 0
    with recorded_calls(weighing_mixers(network) if has_coverage else {}) as calls:
        return config.run(PairReader(network, source, source_padding_mask, config.cache, boundary, calls), limits)


def lengths_of(source: Int[Tensor, "b s"], padding_mask: Bool[Tensor, "b s"] | None) -> Int[Tensor, " b"]:
    """Returns the number of real symbols of each source."""
    return torch.full_like(source[:, 0], source.size(1)) if padding_mask is None else padding_mask.sum(dim=1)


def require_streams(network: PairNetwork) -> None:
    """Raises ConfigError where a mixer of the decoder keeps no state."""
    if network.unreadable:
        reason = f"{' and '.join(network.unreadable)} cannot be read symbol by symbol; set task.decoding.cache=false"
        raise ConfigError(reason, "task.decoding.cache")


def weighing_mixers(network: PairNetwork) -> dict[str, QKVMixer]:
    """Returns the cross mixers, by number. Raises ConfigError where one has no attention weights."""
    mixers = {}
    for number, mixer in enumerate(network.crossings()):
        if not isinstance(mixer, QKVMixer):
            reason = f"{type(mixer).__name__} weighs no symbol of the source; set task.decoding.coverage=0"
            raise ConfigError(reason, "task.decoding.coverage")
        mixers[str(number)] = mixer
    return mixers


class Reader(ABC):
    """Runs a network on hypotheses. Each row of a batch has equally many, in consecutive rows.

    boundary: the symbol that starts a prefix, and ends an output that is shorter than its limit; dtype: of
    log-probabilities.
    """

    boundary: int
    dtype: torch.dtype

    @abstractmethod
    def read(self, prefixes: Int[Tensor, "n t"]) -> Float[Tensor, "n v"] | None:
        """Returns log-probabilities of the symbol after each prefix, or None where it exceeds the weights' reach."""

    @abstractmethod
    def take(self, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> None:
        """Keeps only these hypotheses, in this order, and only ``rows`` of the batch where some are removed."""


class PairReader(Reader):
    """Runs the decoder on a batch of sources. ``calls`` records those of the cross mixers, where they are needed."""

    def __init__(
        self,
        network: PairNetwork,
        source: Int[Tensor, "b s"],
        padding_mask: Bool[Tensor, "b s"] | None,
        cached: bool,
        boundary: int,
        calls: list[ModuleCall],
    ) -> None:
        self.network, self.cached, self.boundary, self.calls = network, cached, boundary, calls
        self.source, self.padding_mask = network.encode(source, padding_mask).hidden, padding_mask
        self.dtype = full_precision(self.source[:0]).dtype
        self.state: Any = None

    def read(self, prefixes: Int[Tensor, "n t"]) -> Float[Tensor, "n v"] | None:
        symbols = prefixes[:, -1:] if self.cached else prefixes
        self.calls.clear()
        try:
            output = self.network.decode(
                symbols, self.source, self.padding_mask, self.state, unbroken=prefixes.size(1) - symbols.size(1)
            )
        except (LengthError, PositionError):
            return None
        self.state = output.state if self.cached else None
        return self.network.tokens.log_probabilities(output.hidden[:, -1])

    def take(self, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> None:
        if rows is not None:
            self.source = self.source[rows]
            self.padding_mask = None if self.padding_mask is None else self.padding_mask[rows]
        if self.state is not None:
            self.state = self.network.take_hypotheses(self.state, hypotheses, rows)

    def attended(self, hypotheses: int) -> Float[Tensor, "b h s"]:
        """Returns the attention of each hypothesis to each source symbol in the last call, summed over the symbols read
        and averaged over the heads of the last layer."""
        _, mixer, (x, ctx, *_), output = self.calls[-1]
        assert isinstance(mixer, QKVMixer)
        inputs, _, segment = mixer.prepared(x, ctx, output.state)  # the state holds keys and values of the source
        one_hot = torch.eye(inputs.k.size(-2), device=x.device)
        weights = [full_precision(part).mean(dim=1) for part in mixer.weighted_sums(one_hot, inputs, ctx, segment)]
        return torch.cat(weights, dim=-1).unflatten(1, (hypotheses, -1)).sum(dim=2)


def few(running: Bool[Tensor, " n"], step: int) -> bool:
    """Whether so few rows still run that the others should be removed. Not checked at every step on a device."""
    if not reads_at_once(running) and step % PATIENCE:
        return False
    return int(running.sum()) <= LEAVE * len(running)


def walk(
    reader: Reader, limits: Int[Tensor, " b"], select: Callable[[Float[Tensor, "n v"]], Int[Tensor, " n"]]
) -> Decoded:
    """Decodes one hypothesis for each row, symbol by symbol, as ``select`` chooses from the log-probabilities."""
    count, longest = len(limits), int(limits.max())
    outputs = limits.new_full((count, 1 + longest), reader.boundary)
    scores = torch.zeros(count, dtype=reader.dtype, device=limits.device)
    row_indices, running = torch.arange(count, device=limits.device), torch.ones_like(limits, dtype=torch.bool)
    for step in range(1, longest + 1):
        log_probabilities = reader.read(outputs[row_indices, :step])
        if log_probabilities is None:
            break
        symbols = select(log_probabilities).masked_fill(~running, reader.boundary)
        step_scores = log_probabilities.gather(1, symbols[:, None]).squeeze(1).masked_fill(~running, 0.0)
        scores.index_add_(0, row_indices, step_scores)
        outputs[row_indices, step] = symbols
        running = running & (symbols != reader.boundary) & (limits[row_indices] > step)
        if few(running, step):
            remaining = running.nonzero().squeeze(1)
            if len(remaining) == 0:
                break
            row_indices, running = row_indices[remaining], running[remaining]
            reader.take(remaining, remaining)
    return Decoded(without_boundaries(outputs[:, 1:], reader.boundary), scores)


def without_boundaries(outputs: Int[Tensor, "b t"], boundary: int) -> list[list[int]]:
    """Returns the symbols of each row before its first boundary."""
    return [row[: row.index(boundary)] if boundary in row else row for row in outputs.tolist()]


class Coverage:
    """The attention that each hypothesis has given to every source symbol, and the term cp of BeamConfig that it sets.

    beta: the weight of the term.
    """

    def __init__(self, beta: float, reader: PairReader, beams: int) -> None:
        self.beta, self.reader, self.beams = beta, reader, beams
        rows, symbols = reader.source.shape[:2]
        self.attended = reader.source.new_zeros(rows, beams, symbols, dtype=reader.dtype)

    def read(self) -> None:
        """Adds the attention of the last call."""
        weights = self.reader.attended(self.beams)
        self.attended = self.attended + weights if self.reader.cached else weights

    def take(self, rows: Int[Tensor, "b 1"], parents: Int[Tensor, "b h"]) -> None:
        """Keeps only these rows, and of each these hypotheses, in this order."""
        self.attended = self.attended[rows, parents]

    def term(self) -> Float[Tensor, "b h"]:
        """Returns beta times the sum over the source of log(min(attention, 1)), with attention of at least TRACE."""
        log_weights = self.attended.clamp(TRACE, 1.0).log()
        if self.reader.padding_mask is not None:
            log_weights = log_weights.masked_fill(~self.reader.padding_mask[:, None], 0.0)
        return self.beta * log_weights.sum(dim=-1)


class BeamSearch:
    """Beam search. Of the 2 * beams best continuations of a row, those that end among the first ``beams`` compete to be
    its output, and the first ``beams`` that do not end continue."""

    def __init__(
        self, config: BeamConfig, reader: Reader, limits: Int[Tensor, " b"], coverage: Coverage | None = None
    ) -> None:
        self.config, self.reader, self.beams, self.limits = config, reader, config.beams, limits
        self.coverage = coverage
        rows, self.longest = len(limits), int(limits.max())
        self.places, self.going = torch.arange(rows, device=limits.device), torch.ones_like(limits, dtype=torch.bool)
        self.prefixes = limits.new_full((rows, self.beams, 1), reader.boundary)
        self.scores = torch.full((rows, self.beams), float("-inf"), dtype=reader.dtype, device=limits.device)
        self.scores[:, 0] = 0.0  # all hypotheses are equal at first, so only one continues
        self.ended = torch.zeros_like(limits)
        self.outputs = limits.new_full((rows, self.longest), reader.boundary)
        self.worth = torch.full_like(self.scores[:, 0], float("-inf"))

    def run(self) -> Decoded:
        for step in range(1, self.longest + 1):
            log_probabilities = self.reader.read(self.prefixes.flatten(0, 1))
            if log_probabilities is None:
                parents = torch.arange(self.beams, device=self.limits.device).expand_as(self.scores)
                self.offer(self.scores, self.prefixes, parents)
                break
            if self.coverage is not None:
                self.coverage.read()
            self.advance(log_probabilities.unflatten(0, (-1, self.beams)), step)
            if not len(self.places):
                break
        return Decoded(without_boundaries(self.outputs, self.reader.boundary), self.worth)

    def advance(self, log_probabilities: Float[Tensor, "b h v"], step: int) -> None:
        """Extends the hypotheses of every row by one symbol."""
        candidates, rows = best(self.scores, log_probabilities, 2 * self.beams), self.rows()
        prefixes = torch.cat([self.prefixes[rows, candidates.parents], candidates.symbols[..., None]], dim=-1)
        is_end = candidates.symbols == self.reader.boundary
        is_complete = is_end | (self.limits == step)[:, None]
        is_complete[:, self.beams :] = False
        self.offer(candidates.scores.masked_fill(~is_complete, float("-inf")), prefixes, candidates.parents)
        running = candidates.scores.masked_fill(is_end, float("-inf")).topk(self.beams, dim=1)
        self.scores, self.prefixes = running.values, prefixes[rows, running.indices]
        self.going = self.going & (self.limits > step) & ~self.over()
        self.go_on(candidates.parents.gather(1, running.indices), step)

    def offer(self, scores: Float[Tensor, "b n"], prefixes: Int[Tensor, "b n t"], parents: Int[Tensor, "b n"]) -> None:
        """Lets hypotheses compete to be the output; the score of one that does not compete is minus infinity. The first
        symbol of each is the boundary that starts it and is not part of the output."""
        length = prefixes.size(-1) - 1
        worth = scores / self.config.penalty(scores.new_full((1,), length))
        if self.coverage is not None:
            worth = worth + self.coverage.term().gather(1, parents)
        worth = worth.masked_fill(~self.going[:, None], float("-inf"))
        best_worth, best_index = worth.max(dim=1)
        previous_worth = self.worth[self.places]
        is_better = best_worth > previous_worth
        outputs = prefixes[self.rows()[:, 0], best_index, 1:]
        self.worth[self.places] = torch.where(is_better, best_worth, previous_worth)
        self.outputs[self.places, :length] = torch.where(
            is_better[:, None], outputs, self.outputs[self.places, :length]
        )
        self.ended = self.ended + worth.isfinite().sum(dim=1)

    def over(self) -> Bool[Tensor, " b"]:
        """Whether no running hypothesis can still become the output. A hypothesis is at most worth its sum of
        log-probabilities, which only falls, at the length that is penalised the least, which is the longest."""
        if self.config.until == "full":
            return self.ended >= self.beams
        bound = self.scores[:, 0] / self.config.penalty(self.limits.to(self.scores.dtype))
        return self.worth[self.places] >= bound

    def go_on(self, parents: Int[Tensor, "b h"], step: int) -> None:
        """Continues with the chosen hypotheses, and removes the rows that have ended once they are many."""
        rows, remaining = self.rows(), None
        if few(self.going, step):
            remaining = self.going.nonzero().squeeze(1)
            self.places, self.going, self.limits = self.places[remaining], self.going[remaining], self.limits[remaining]
            self.prefixes, self.scores, self.ended = (
                self.prefixes[remaining],
                self.scores[remaining],
                self.ended[remaining],
            )
            rows, parents = rows[remaining], parents[remaining]
        if self.coverage is not None:
            self.coverage.take(rows, parents)
        if len(self.places):
            self.reader.take((rows * self.beams + parents).flatten(), remaining)

    def rows(self) -> Int[Tensor, "b 1"]:
        """Returns the index of each row of the batch, as a column."""
        return torch.arange(len(self.places), device=self.places.device)[:, None]
