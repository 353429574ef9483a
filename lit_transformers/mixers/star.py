"""Star-Transformer (Guo et al. 2019, arXiv:1902.09113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.recompute import Cut, Stretch, Tensors, TensorSlice, pieces_of, recomputed
from lit_transformers.config import ConfigError, Positive, Rounds
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape
from lit_transformers.mixers.heads import join, split
from lit_transformers.precision import full_precision


@final
class StarConfig(MixerConfig, kind="star"):
    """cycles: how often satellites and relay are updated; ring: whether satellites see both neighbours; radial: whether
    they see the relay, which sees all of them; inputs: whether they see their own input (e_i) in each cycle; boundary:
    the neighbours beyond both ends: the other end (the paper), a key and a value of zeros, or nothing; shared:
    whether all cycles use the same weights; bias: whether the projections have one."""

    cycles: Annotated[Positive, Rounds] = 2
    ring: bool = True
    radial: bool = True
    inputs: bool = True
    boundary: Literal["cyclic", "zero", "masked"] = "cyclic"
    shared: bool = False
    bias: bool = False

    def conflicts(self) -> Iterator[str]:
        if not self.ring and not self.radial:
            yield "without ring and radial links no token sees another; leave one of them"
        if not self.ring and self.boundary != "cyclic":
            yield "without a ring there is no boundary; drop boundary, or set ring: true"
        if self.shared and self.cycles == 1:
            yield "one cycle has nothing to share with; drop shared, or set cycles: 2"

    def promises(self) -> Promises:
        return Promises(
            ("bidirectional",),
            refusals={
                "causal": "every token sees its next neighbour, or a relay that has read the whole sequence",
                "cross": "its ring and its relay are of one sequence",
            },
        )

    def build(self, shape: Shape) -> Star:
        return Star(self, shape)


SIDES = ("before", "after")
"""The names of the links to both neighbours."""
LINKS = ("own", *SIDES, "inputs", "relay")
"""The names of all links of a token."""


class Projected(nn.Module):
    """The four maps of one multi-head attention, and the norm after it: LN(ReLU(...)), without a residual."""

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.merge = (
            nn.Linear(shape.dim, shape.dim, bias=config.bias) for _ in range(4)
        )
        self.norm = nn.LayerNorm(shape.dim)

    def pair(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, ...]:
        """Returns keys and values, each (b, t, d)."""
        return self.key(x), self.value(x)

    def finish(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.norm(self.merge(y).relu())


@final
class Star(Mixer):
    """Algorithm 1, section 3.2: C_i = [h_(i-1); h_i; h_(i+1); e_i; s], h_i' = LN(ReLU(MultiAtt(h_i, C_i))), then
    s' = LN(ReLU(MultiAtt(s, [s; H']))) of the new satellites, from H = E and s = mean(E).

    There is no residual inside a cycle, as in the paper; a block's is around all cycles. The output is H, so the last
    cycle updates no relay, which would not be read. Neighbours are the nearest real tokens, also across padding; in a
    ring of one or two a token sees itself or its neighbour twice, as the formula says. Its maps have no roles: the maps
    of relays are multiplied with others before they reach a token, so that they can have no adapters.
    """

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        if shape.dim % shape.heads:
            raise ConfigError(f"dim {shape.dim} is not divisible by {shape.heads} heads", "heads")
        self.config, self.dim, self.heads = config, shape.dim, shape.heads
        self.scale = (shape.dim // shape.heads) ** -0.5
        counts = (min(n, 1) if config.shared else n for n in (config.cycles, (config.cycles - 1) * config.radial))
        self.satellites, self.relays = (nn.ModuleList(Projected(config, shape) for _ in range(n)) for n in counts)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        padding_mask = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding_mask is None else ctx.padding_mask
        )
        ring = neighbours(padding_mask, self.config.boundary == "cyclic") if self.config.ring else ()
        satellites = x
        relay = (x * padding_mask[..., None]).sum(1, keepdim=True) / padding_mask.sum(1).clamp(min=1)[:, None, None]
        for cycle in range(self.config.cycles):
            satellites = self._satellites(self._of_cycle(self.satellites, cycle), satellites, x, relay, ring)
            if self.config.radial and cycle + 1 < self.config.cycles:
                relay = self._relay(self._of_cycle(self.relays, cycle), relay, satellites, padding_mask)
        return MixerOutput(satellites)

    def _of_cycle(self, parts: nn.ModuleList, cycle: int) -> Projected:
        return cast("Projected", parts[0 if self.config.shared else cycle])

    def _satellites(
        self, part: Projected, h: Tensor, e: Tensor, relay: Tensor, ring: tuple[Tensor, ...]
    ) -> Float[Tensor, "b t d"]:
        """Computes the attention of tokens in pieces, and again in the backward pass. So the products of all tokens
        with their neighbours are never held at once."""
        groups = {"queries": (part.query(h),), "own": part.pair(h)}
        groups["exists"] = tuple((indices >= 0)[..., None] for indices in ring)
        if self.config.inputs and h is not e:
            groups["inputs"] = part.pair(e)
        if self.config.radial:
            groups["relay"] = part.pair(relay)
        tensors = {name: tuple(each[:, None] for each in group) for name, group in groups.items()}
        places = pieces_of(h.size(1), h.size(0) * self.dim, h.device)
        cuts = [self._links(place, ring, h is e) for place in places]
        (y,) = recomputed(lambda _, leaves: (self._read(leaves),), cuts, places, tensors, random=False)
        return part.finish(y.squeeze(1))

    def _links(self, place: Stretch, ring: tuple[Tensor, ...], is_first: bool) -> Cut:
        """Returns the vectors that the tokens at a place read. In the first cycle, the tokens are their own inputs."""
        cut = {name: TensorSlice(name, rows=place) for name in ("queries", "own", "exists")}
        for side, indices in zip(SIDES, ring, strict=False):
            cut[side] = TensorSlice("own", chosen=indices[:, None, place.first : place.stop].clamp(min=0))
        if self.config.inputs:
            cut["inputs"] = TensorSlice("own" if is_first else "inputs", rows=place)
        return cut | {"relay": TensorSlice("relay")} if self.config.radial else cut

    def _read(self, leaves: Tensors) -> Float[Tensor, "b 1 t d"]:
        """Returns the sum of the values that tokens read through their links, head by head."""
        (queries,), exists = leaves["queries"], dict(zip(SIDES, leaves["exists"], strict=False))
        queries, logits, values = queries * self.scale, [], []
        for link in (link for link in LINKS if link in leaves):
            k, v = leaves[link]
            if link in exists and self.config.boundary == "zero":
                k, v = k * exists[link], v * exists[link]
            scores = (queries * k).unflatten(-1, (self.heads, -1)).sum(-1)
            if link in exists and self.config.boundary != "zero":
                scores = scores.masked_fill(~exists[link], float("-inf"))
            logits.append(scores)
            values.append(v.unflatten(-1, (self.heads, -1)))
        weights = torch.stack(logits, dim=-1).softmax(dim=-1)  # (b, 1, t, h, links)
        y = torch.zeros_like(queries).unflatten(-1, (self.heads, -1))
        for weight, v in zip(weights.to(y.dtype).split(1, dim=-1), values, strict=True):
            y = torch.addcmul(y, weight, v)
        return y.flatten(-2)

    def _relay(
        self, part: Projected, relay: Tensor, satellites: Tensor, padding_mask: Tensor
    ) -> Float[Tensor, "b 1 d"]:
        """There is one query, so that its product with the map of the keys, and that of the map of the values with the
        weighted sum of their inputs, take the place of a key and a value for every satellite."""
        x = torch.cat([relay, satellites], dim=1)
        key_mask = F.pad(padding_mask, (1, 0), value=True)
        queries = split(part.query(relay), self.heads) * self.scale  # (b, h, 1, k)
        by_head = part.key.weight.unflatten(0, (part.heads, -1))  # (h, k, d)
        logits = (queries @ by_head).flatten(1, 2) @ x.mT  # (b, h, 1 + t)
        if part.key.bias is not None:
            logits = logits + (queries.flatten(2) * part.key.bias.view(part.heads, -1)).sum(-1, keepdim=True)
        weights = full_precision(logits).masked_fill(~key_mask[:, None], float("-inf")).softmax(dim=-1)
        read = (weights.to(x.dtype) @ x).unsqueeze(2)  # (b, h, 1, d)
        y = join(read @ part.value.weight.unflatten(0, (part.heads, -1)).mT)
        return part.finish(y if part.value.bias is None else y + part.value.bias)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """As in ``Mixer.flops``. A token's scores and sums over its few links are no products of matrices, and like
        norms and softmaxes they are not counted."""
        config, square = self.config, self.dim * self.dim
        maps = config.cycles * (4 * queries + 2 * config.radial) + 2 * (config.cycles - 1) * config.inputs * queries
        relay = (4 * square + 2 * (queries + 1) * self.heads * self.dim) * (config.cycles - 1)
        return 2 * (maps * square + relay * config.radial)


def neighbours(padding_mask: Bool[Tensor, "b t"], cyclic: bool) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Returns the positions of the nearest real token before and after each position, -1 where there is none."""
    ahead = before(padding_mask.flip(1), cyclic).flip(1)
    return before(padding_mask, cyclic), torch.where(ahead < 0, ahead, padding_mask.size(1) - 1 - ahead)


def before(padding_mask: Bool[Tensor, "b t"], cyclic: bool) -> Int[Tensor, "b t"]:
    """Returns the position of the last real token before each one; if there is none, -1, or, if cyclic, the last."""
    positions = torch.arange(padding_mask.size(1), device=padding_mask.device).expand_as(padding_mask)
    latest = positions.masked_fill(~padding_mask, -1).cummax(dim=1).values
    previous = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    return torch.where(previous < 0, latest[:, -1:], previous) if cyclic else previous
