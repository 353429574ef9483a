"""What an encoder-decoder makes of a source: greedy, sampling, and beam search, for all rows of a batch at once.

Loops over the decoder and its state, and knows no cache. Rows that have ended leave the batch, a good part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.choosing import SamplingConfig, best, choose
from lit_transformers.config import Config, ConfigError, NonNegative, NonNegativeFloat, Positive, table
from lit_transformers.mixer import LengthError, Mixer, full_precision
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.models.encoder_decoder import EncoderDecoder, take_hypotheses
from lit_transformers.positions import PositionError
from lit_transformers.space import Interval, Space

LEAVE = 0.75
"""Rows leave when no more than this share of them goes on: what is kept of the others is copied then."""
PATIENCE = 8
"""Steps between two questions how many rows go on, where the answer lies on a device that must be waited for."""
TRACE = 1e-9
"""The attention that a symbol of the source counts as having got at least, for coverage."""


class DecodingConfig(Config):
    """Base of every way to decode; the table DECODINGS lists the kinds.

    ratio, extra: an output ends after ratio * source + extra symbols at the latest, rounded down, the source's boundary
    among them (arXiv:1706.03762, section 6.1: 1 and 50), or where the decoder's weights reach no further.
    cache: the decoder's state is kept from symbol to symbol; else all that was said is read anew for every symbol.
    """

    ratio: NonNegativeFloat = 1.0
    extra: NonNegative = 50
    cache: bool = True

    def run(self, reader: Reader, limits: Int[Tensor, " b"]) -> Decoded:
        """Reads until every row has ended, or has said as much as its limit."""
        raise NotImplementedError


class GreedyConfig(DecodingConfig, kind="greedy"):
    """The likeliest symbol, each time."""

    def run(self, reader: Reader, limits: Int[Tensor, " b"]) -> Decoded:
        return walk(reader, limits, lambda log_probabilities: log_probabilities.argmax(dim=-1))


class SampledConfig(DecodingConfig, kind="sampling"):
    """Symbols as likely as the network says. What a row says depends on the rows beside it, which draw from the same
    random numbers."""

    sampling: SamplingConfig = SamplingConfig()

    def run(self, reader: Reader, limits: Int[Tensor, " b"]) -> Decoded:
        generator = self.sampling.generator(limits.device)
        return walk(reader, limits, partial(choose, config=self.sampling, generator=generator))


class BeamConfig(DecodingConfig, kind="beam"):
    """The best of what ``beams`` hypotheses of each row find: log P(Y|X) / lp(Y) + cp(X; Y).

    length_penalty: alpha of lp = ((5 + |Y|) / 6)^alpha (GNMT, arXiv:1609.08144, equation 14), or where ``lengths`` is
    ``power`` of lp = |Y|^alpha, as in fairseq and transformers; |Y| counts the boundary. coverage: beta of cp, the same
    equation, of the mean over the heads of the last layer's cross mixer.
    until: a row ends when no running hypothesis can still win at any length (``sure``), or when as many as ``beams``
    have ended (``full``: earlier, and at times with a lesser one). What is cut at the longest counts as ended.
    """

    space: ClassVar[Space] = {"length_penalty": Interval(0.0, 1.5)}

    beams: Positive = 4
    length_penalty: NonNegativeFloat = 0.6
    lengths: Literal["gnmt", "power"] = "gnmt"
    coverage: NonNegativeFloat = 0.0
    until: Literal["sure", "full"] = "sure"

    def run(self, reader: Reader, limits: Int[Tensor, " b"]) -> Decoded:
        return Search(self, reader, limits).run()

    def penalty(self, length: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """lp of so many symbols."""
        found: Tensor = ((5 + length) / 6 if self.lengths == "gnmt" else length) ** self.length_penalty
        return found


DECODINGS = table(DecodingConfig, GreedyConfig, SampledConfig, BeamConfig)


class Decoded(NamedTuple):
    """Of each row what was said, without boundaries, and how good that is: its log-probability with that of its end; of
    a beam search with penalties."""

    symbols: list[list[int]]
    scores: Float[Tensor, " b"]


@torch.no_grad()
def decode(
    network: EncoderDecoder,
    source: Int[Tensor, "b s"],
    source_keep: Bool[Tensor, "b s"] | None,
    config: DecodingConfig,
    boundary: int,
) -> Decoded:
    """One output for every row of the source. ``boundary`` begins and ends a target.

    Raises ConfigError where the decoder cannot be read symbol by symbol, or its attention not be watched.
    """
    if config.cache:
        require_streams(network)
    real = torch.full_like(source[:, 0], source.size(1)) if source_keep is None else source_keep.sum(dim=1)
    limits = ((config.ratio * real).long() + config.extra).clamp(min=1)
    if len(limits) == 0:
        return Decoded([], torch.zeros(0, device=source.device))
    with watched(network, isinstance(config, BeamConfig) and config.coverage > 0) as calls:
        return config.run(Reader(network, source, source_keep, config.cache, boundary, calls), limits)


def require_streams(network: EncoderDecoder) -> None:
    """Raises ConfigError where a mixer of the decoder keeps no state."""
    if not network.streams:
        mixers = (module for module in network.decoder.modules() if isinstance(module, Mixer))
        names = sorted({type(mixer).__name__ for mixer in mixers if not mixer.streams})
        reason = f"{' and '.join(names)} cannot be read symbol by symbol; set task.decoding.cache=false"
        raise ConfigError(reason, "task.decoding.cache")


class Call(NamedTuple):
    """One call of a cross mixer."""

    mixer: QKVMixer
    given: tuple[Any, ...]
    state: Any


@contextmanager
def watched(network: EncoderDecoder, asked: bool) -> Iterator[list[Call]]:
    """The calls of the cross mixers in the block, where they are ``asked`` for. Raises ConfigError where there is no
    attention to be seen."""
    calls: list[Call] = []
    crossings = network.crossings() if asked else []
    blind = next((mixer for mixer in crossings if not isinstance(mixer, QKVMixer)), None)
    if blind is not None:
        reason = f"{type(blind).__name__} weighs no symbol of the source; set task.decoding.coverage=0"
        raise ConfigError(reason, "task.decoding.coverage")

    def note(mixer: Any, given: tuple[Any, ...], made: Any) -> None:
        calls.append(Call(mixer, given, made.state))

    handles = [mixer.register_forward_hook(note) for mixer in crossings]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class Reader:
    """The decoder at work on a batch: each row of the source has one or several hypotheses, which follow each other."""

    def __init__(
        self,
        network: EncoderDecoder,
        source: Int[Tensor, "b s"],
        keep: Bool[Tensor, "b s"] | None,
        cached: bool,
        boundary: int,
        calls: list[Call],
    ) -> None:
        self.network, self.cached, self.boundary, self.calls = network, cached, boundary, calls
        self.source, self.keep = network.encode(source, keep).hidden, keep
        self.dtype = full_precision(self.source[:0]).dtype
        self.state: Any = None

    def read(self, said: Int[Tensor, "n t"]) -> Float[Tensor, "n v"] | None:
        """Log-probabilities of the next symbol after all that was said; None where the weights reach no further."""
        symbols = said[:, -1:] if self.cached else said
        self.calls.clear()
        try:
            read = self.network.decode(symbols, self.source, self.keep, self.state)
        except (LengthError, PositionError):
            return None
        self.state = read.state if self.cached else None
        return self.network.tokens.log_probabilities(read.hidden[:, -1])

    def take(self, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> None:
        """Goes on with these hypotheses alone, in this order; with ``rows`` of the source alone, where some leave."""
        if rows is not None:
            self.source = self.source[rows]
            self.keep = None if self.keep is None else self.keep[rows]
        if self.state is not None:
            self.state = take_hypotheses(self.state, hypotheses, rows)

    def attended(self, hypotheses: int) -> Float[Tensor, "b h s"]:
        """How much each hypothesis of a row looked at each symbol of the source in the last call, all its symbols
        together: the mean over the heads of the last layer.

        Attention is linear in its values, so values that say which key they are come out as the weight it is given.
        """
        mixer, (x, ctx, *_), state = self.calls[-1]
        inputs, _, heard = mixer.prepared(x, ctx, state)
        keys, width = inputs.k.size(-2), inputs.v.size(-1)
        parts = []
        for which in torch.eye(keys, dtype=inputs.v.dtype, device=x.device).split(width, dim=1):
            v = F.pad(which, (0, width - which.size(1))).expand_as(inputs.v)
            y, _ = mixer.attend(inputs._replace(v=v), ctx, heard)
            parts.append(full_precision(y[..., : which.size(1)]).mean(dim=1))
        return torch.cat(parts, dim=-1).unflatten(1, (hypotheses, -1)).sum(dim=2)


def few(going: Bool[Tensor, " n"], step: int) -> bool:
    """Whether so few rows go on that the others should leave. Not asked at every step of a device."""
    if going.device.type != "cpu" and step % PATIENCE:
        return False
    return int(going.sum()) <= LEAVE * len(going)


def walk(
    reader: Reader, limits: Int[Tensor, " b"], chosen: Callable[[Float[Tensor, "n v"]], Int[Tensor, " n"]]
) -> Decoded:
    """One hypothesis of each row, one chosen symbol after another."""
    rows, longest = len(limits), int(limits.max())
    said = limits.new_full((rows, 1 + longest), reader.boundary)
    scores = torch.zeros(rows, dtype=reader.dtype, device=limits.device)
    places, going = torch.arange(rows, device=limits.device), torch.ones_like(limits, dtype=torch.bool)
    for step in range(1, longest + 1):
        log_probabilities = reader.read(said[places, :step])
        if log_probabilities is None:
            break
        symbols = chosen(log_probabilities).masked_fill(~going, reader.boundary)
        gained = log_probabilities.gather(1, symbols[:, None]).squeeze(1).masked_fill(~going, 0.0)
        scores.index_add_(0, places, gained)
        said[places, step] = symbols
        going = going & (symbols != reader.boundary) & (limits[places] > step)
        if few(going, step):
            left = going.nonzero().squeeze(1)
            if len(left) == 0:
                break
            places, going = places[left], going[left]
            reader.take(left, left)
    return Decoded(without_boundaries(said[:, 1:], reader.boundary), scores)


def without_boundaries(said: Int[Tensor, "b t"], boundary: int) -> list[list[int]]:
    """What stands before the first boundary of each row."""
    return [row[: row.index(boundary)] if boundary in row else row for row in said.tolist()]


class Search:
    """Beam search: of the 2 beams best continuations of a row, those that end among the first ``beams`` compete to be
    its output, and the first ``beams`` that do not end go on."""

    def __init__(self, config: BeamConfig, reader: Reader, limits: Int[Tensor, " b"]) -> None:
        self.config, self.reader, self.beams, self.limits = config, reader, config.beams, limits
        rows, self.longest = len(limits), int(limits.max())
        self.places, self.going = torch.arange(rows, device=limits.device), torch.ones_like(limits, dtype=torch.bool)
        self.said = limits.new_full((rows, self.beams, 1), reader.boundary)
        self.scores = torch.full((rows, self.beams), float("-inf"), dtype=reader.dtype, device=limits.device)
        self.scores[:, 0] = 0.0  # all begin alike, and one of them goes on
        self.attended: Tensor | None = None
        self.ended = torch.zeros_like(limits)
        self.outputs = limits.new_full((rows, self.longest), reader.boundary)
        self.worth = torch.full_like(self.scores[:, 0], float("-inf"))

    def run(self) -> Decoded:
        for step in range(1, self.longest + 1):
            log_probabilities = self.reader.read(self.said.flatten(0, 1))
            if log_probabilities is None:
                every = torch.arange(self.beams, device=self.limits.device).expand_as(self.scores)
                self.offer(self.scores, self.said, every)
                break
            self.look()
            self.advance(log_probabilities.unflatten(0, (-1, self.beams)), step)
            if not len(self.places):
                break
        return Decoded(without_boundaries(self.outputs, self.reader.boundary), self.worth)

    def look(self) -> None:
        """Adds what the last symbol looked at."""
        if self.config.coverage:
            seen = self.reader.attended(self.beams)
            self.attended = seen if self.attended is None or not self.reader.cached else self.attended + seen

    def advance(self, log_probabilities: Float[Tensor, "b h v"], step: int) -> None:
        """Every row by one symbol."""
        found, rows = best(self.scores, log_probabilities, 2 * self.beams), self.rows()
        said = torch.cat([self.said[rows, found.parents], found.symbols[..., None]], dim=-1)
        ends = found.symbols == self.reader.boundary
        competes = ends | (self.limits == step)[:, None]
        competes[:, self.beams :] = False
        self.offer(found.scores.masked_fill(~competes, float("-inf")), said, found.parents)
        on = found.scores.masked_fill(ends, float("-inf")).topk(self.beams, dim=1)
        self.scores, self.said = on.values, said[rows, on.indices]
        self.going = self.going & (self.limits > step) & ~self.over()
        parents = found.parents.gather(1, on.indices)
        if self.attended is not None:
            self.attended = self.attended[rows, parents]
        self.go_on(parents, step)

    def offer(self, scores: Float[Tensor, "b n"], said: Int[Tensor, "b n t"], parents: Int[Tensor, "b n"]) -> None:
        """Hypotheses that compete to be the output; minus infinity where one does not. The first symbol is a boundary
        that none has said."""
        length = said.size(-1) - 1
        worth = scores / self.config.penalty(scores.new_full((1,), length))
        if self.attended is not None:
            worth = worth + self.covered(self.attended).gather(1, parents)
        worth = worth.masked_fill(~self.going[:, None], float("-inf"))
        value, which = worth.max(dim=1)
        before = self.worth[self.places]
        better = value > before
        texts = said[self.rows()[:, 0], which, 1:]
        self.worth[self.places] = torch.where(better, value, before)
        self.outputs[self.places, :length] = torch.where(better[:, None], texts, self.outputs[self.places, :length])
        self.ended = self.ended + worth.isfinite().sum(dim=1)

    def covered(self, attended: Float[Tensor, "b h s"]) -> Float[Tensor, "b h"]:
        """beta times the sum over the source of log(min(attention, 1)); what was never looked at counts as a trace."""
        logarithms = attended.clamp(TRACE, 1.0).log()
        if self.reader.keep is not None:
            logarithms = logarithms.masked_fill(~self.reader.keep[:, None], 0.0)
        return self.config.coverage * logarithms.sum(dim=-1)

    def over(self) -> Bool[Tensor, " b"]:
        """Whether nothing that runs can still be the output: neither penalty makes a hypothesis better than its sum of
        log-probabilities, which only falls, at the length that is penalised the least, the longest."""
        if self.config.until == "full":
            return self.ended >= self.beams
        bound = self.scores[:, 0] / self.config.penalty(self.limits.to(self.scores.dtype))
        return self.worth[self.places] >= bound

    def go_on(self, parents: Int[Tensor, "b h"], step: int) -> None:
        """With the hypotheses that were chosen, and without the rows that have ended once they are many."""
        hypotheses, left = self.rows() * self.beams + parents, None
        if few(self.going, step):
            left = self.going.nonzero().squeeze(1)
            self.places, self.going, self.limits = self.places[left], self.going[left], self.limits[left]
            self.said, self.scores, self.ended = self.said[left], self.scores[left], self.ended[left]
            self.attended = None if self.attended is None else self.attended[left]
            hypotheses = hypotheses[left]
        if len(self.places):
            self.reader.take(hypotheses.flatten(), left)

    def rows(self) -> Int[Tensor, "b 1"]:
        """The number of each row of the batch."""
        return torch.arange(len(self.places), device=self.places.device)[:, None]
