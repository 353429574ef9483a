"""Star-Transformer (Guo et al. 2019, arXiv:1902.09113)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Positive
from lit_transformers.executors import Inputs, attend
from lit_transformers.mixer import Context, Mixed, Mixer, MixerConfig, Mode, Shape
from lit_transformers.patterns import Band


class StarConfig(MixerConfig, kind="star"):
    """cycles: how often satellites and relay are updated; ring: satellites see both neighbours; radial: they see the
    relay, which sees all of them; inputs: they see their own input again in each cycle (e_i); boundary: what the ends
    see beyond themselves, the other end (the paper), a key and a value of zeros, or nothing; shared: all cycles use the
    same weights; bias: on the projections."""

    cycles: Positive = 2
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

    def build(self, shape: Shape) -> Star:
        return Star(self, shape)


class Projected(nn.Module):
    """The four maps of one multi-head attention, and the norm after it: LN(ReLU(...)), no residual."""

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.merge = (
            nn.Linear(shape.dim, shape.dim, bias=config.bias) for _ in range(4)
        )
        self.norm = nn.LayerNorm(shape.dim)

    def pair(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "2 b t h k"]:
        """Keys and values."""
        return torch.stack([self.key(x), self.value(x)]).unflatten(-1, (self.heads, -1))

    def ask(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t h k"]:
        return self.query(x).unflatten(-1, (self.heads, -1))

    def finish(self, heads: Float[Tensor, "b t h k"]) -> Float[Tensor, "b t d"]:
        return self.norm(self.merge(heads.flatten(2)).relu())


class Star(Mixer):
    """Algorithm 1, section 3.2: C_i = [h_(i-1); h_i; h_(i+1); e_i; s], h_i' = LN(ReLU(MultiAtt(h_i, C_i))), then
    s' = LN(ReLU(MultiAtt(s, [s; H']))) of the new satellites, from H = E and s = mean(E).

    No residual inside a cycle, as in the paper; a block's is around all of them. The output is H, so the last cycle
    updates no relay: nobody would read it. Neighbours are the nearest real tokens, whatever padding lies between; a
    ring of one or two shows a token itself or its neighbour twice, as the formula says.
    """

    bidirectional = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "causal": "every token sees its next neighbour, or a relay that has read the whole sequence",
        "cross": "its ring and its relay are of one sequence",
    }

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        if shape.dim % shape.heads:
            raise ConfigError(f"dim {shape.dim} is not divisible by {shape.heads} heads", "heads")
        self.config, self.dim, self.scale = config, shape.dim, (shape.dim // shape.heads) ** -0.5
        counts = (min(n, 1) if config.shared else n for n in (config.cycles, (config.cycles - 1) * config.radial))
        self.satellites, self.relays = (nn.ModuleList(Projected(config, shape) for _ in range(n)) for n in counts)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.keep is None else ctx.keep
        ring = neighbours(keep, self.config.boundary == "cyclic") if self.config.ring else ()
        satellites = x
        relay = (x * keep[..., None]).sum(1, keepdim=True) / keep.sum(1).clamp(min=1)[:, None, None]
        for cycle in range(self.config.cycles):
            satellites = self._satellites(self._of(self.satellites, cycle), satellites, x, relay, ring)
            if self.config.radial and cycle + 1 < self.config.cycles:
                relay = self._relay(self._of(self.relays, cycle), relay, satellites, keep)
        return Mixed(satellites)

    def _of(self, parts: nn.ModuleList, cycle: int) -> Projected:
        return cast("Projected", parts[0 if self.config.shared else cycle])

    def _satellites(
        self, part: Projected, h: Tensor, e: Tensor, relay: Tensor, ring: tuple[Tensor, ...]
    ) -> Float[Tensor, "b t d"]:
        own = part.pair(h)
        seen = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
        context, mask = [own], [seen]
        for place in ring:
            beside = own.gather(2, place.clamp(min=0)[None, ..., None, None].expand_as(own))
            context.append(beside * (place >= 0)[..., None, None])
            mask.append(seen if self.config.boundary == "zero" else place >= 0)
        if self.config.inputs:
            context.append(part.pair(e))
        if self.config.radial:
            context.append(part.pair(relay).expand_as(own))
        mask += [seen] * (len(context) - len(mask))
        keys, values = torch.stack(context, dim=-2)  # (b, t, h, c, k)
        logits = torch.einsum("bthk,bthck->bthc", part.ask(h) * self.scale, keys)
        weights = logits.masked_fill(~torch.stack(mask, dim=-1)[:, :, None], float("-inf")).softmax(dim=-1)
        return part.finish(torch.einsum("bthc,bthck->bthk", weights.to(values.dtype), values))

    def _relay(self, part: Projected, relay: Tensor, satellites: Tensor, keep: Tensor) -> Float[Tensor, "b 1 d"]:
        keys, values = part.pair(torch.cat([relay, satellites], dim=1)).transpose(2, 3)
        seen = torch.cat([torch.ones_like(keep[:, :1]), keep], dim=1)
        inputs = Inputs(part.ask(relay).transpose(1, 2), keys, values, seen, crossed=True)
        return part.finish(attend(Band(None, None), inputs, scale=self.scale).transpose(1, 2))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        config, square = self.config, self.dim * self.dim
        seen = 1 + 2 * config.ring + config.inputs + config.radial
        maps = 4 * queries + 2 * queries * config.inputs + 2 * config.radial
        relay = (2 + 2 * (queries + 1)) * square + 2 * (queries + 1) * self.dim
        relay *= (config.cycles - 1) * config.radial
        return 2 * (config.cycles * (maps * square + 2 * queries * seen * self.dim) + relay)


def neighbours(keep: Bool[Tensor, "b t"], cyclic: bool) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Where the nearest real token before and after each position stands, -1 where there is none."""
    ahead = before(keep.flip(1), cyclic).flip(1)
    return before(keep, cyclic), torch.where(ahead < 0, ahead, keep.size(1) - 1 - ahead)


def before(keep: Bool[Tensor, "b t"], cyclic: bool) -> Int[Tensor, "b t"]:
    """Where the last real token before each position stands; -1, or the last of all, where there is none."""
    places = torch.arange(keep.size(1), device=keep.device).expand_as(keep)
    latest = places.masked_fill(~keep, -1).cummax(dim=1).values
    found = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    return torch.where(found < 0, latest[:, -1:], found) if cyclic else found
