"""Star-Transformer (Guo et al. 2019, arXiv:1902.09113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.attention.executors import Inputs, attend
from lit_transformers.attention.patterns import Band
from lit_transformers.config import ConfigError, Positive, Rounds
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Promises, Shape


@final
class StarConfig(MixerConfig, kind="star"):
    """cycles: how often satellites and relay are updated; ring: whether satellites see both neighbours; radial: whether
    they see the relay, which sees all of them; inputs: whether they see their own input (e_i) in each cycle; boundary:
    what the ends see beyond themselves: the other end (the paper), a key and a value of zeros, or nothing; shared:
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


class Projected(nn.Module):
    """The four maps of one multi-head attention, and the norm after it: LN(ReLU(...)), without a residual."""

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.merge = (
            nn.Linear(shape.dim, shape.dim, bias=config.bias) for _ in range(4)
        )
        self.norm = nn.LayerNorm(shape.dim)

    def pair(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "2 b t h k"]:
        """Returns keys and values, stacked."""
        return torch.stack([self.key(x), self.value(x)]).unflatten(-1, (self.heads, -1))

    def queries(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t h k"]:
        return self.query(x).unflatten(-1, (self.heads, -1))

    def finish(self, heads: Float[Tensor, "b t h k"]) -> Float[Tensor, "b t d"]:
        return self.norm(self.merge(heads.flatten(2)).relu())


@final
class Star(Mixer):
    """Algorithm 1, section 3.2: C_i = [h_(i-1); h_i; h_(i+1); e_i; s], h_i' = LN(ReLU(MultiAtt(h_i, C_i))), then
    s' = LN(ReLU(MultiAtt(s, [s; H']))) of the new satellites, from H = E and s = mean(E).

    There is no residual inside a cycle, as in the paper; a block's is around all cycles. The output is H, so the last
    cycle updates no relay, which would not be read. Neighbours are the nearest real tokens, whatever padding is
    between; in a ring of one or two a token sees itself or its neighbour twice, as the formula says.
    """

    def __init__(self, config: StarConfig, shape: Shape) -> None:
        super().__init__()
        if shape.dim % shape.heads:
            raise ConfigError(f"dim {shape.dim} is not divisible by {shape.heads} heads", "heads")
        self.config, self.dim, self.scale = config, shape.dim, (shape.dim // shape.heads) ** -0.5
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
        own_pair = part.pair(h)
        key_mask = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
        pairs, masks = [own_pair], [key_mask]
        for indices in ring:
            neighbour_pair = own_pair.gather(2, indices.clamp(min=0)[None, ..., None, None].expand_as(own_pair))
            pairs.append(neighbour_pair * (indices >= 0)[..., None, None])
            masks.append(key_mask if self.config.boundary == "zero" else indices >= 0)
        if self.config.inputs:
            pairs.append(part.pair(e))
        if self.config.radial:
            pairs.append(part.pair(relay).expand_as(own_pair))
        masks += [key_mask] * (len(pairs) - len(masks))
        keys, values = torch.stack(pairs, dim=-2)  # (b, t, h, c, k)
        logits = torch.einsum("bthk,bthck->bthc", part.queries(h) * self.scale, keys)
        weights = logits.masked_fill(~torch.stack(masks, dim=-1)[:, :, None], float("-inf")).softmax(dim=-1)
        return part.finish(torch.einsum("bthc,bthck->bthk", weights.to(values.dtype), values))

    def _relay(
        self, part: Projected, relay: Tensor, satellites: Tensor, padding_mask: Tensor
    ) -> Float[Tensor, "b 1 d"]:
        keys, values = part.pair(torch.cat([relay, satellites], dim=1)).transpose(2, 3)
        key_mask = torch.cat([torch.ones_like(padding_mask[:, :1]), padding_mask], dim=1)
        inputs = Inputs(part.queries(relay).transpose(1, 2), keys, values, key_mask, crossed=True)
        return part.finish(attend(Band(None, None), inputs, scale=self.scale).transpose(1, 2))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        config, square = self.config, self.dim * self.dim
        keys = 1 + 2 * config.ring + config.inputs + config.radial
        maps = 4 * queries + 2 * queries * config.inputs + 2 * config.radial
        relay = (2 + 2 * (queries + 1)) * square + 2 * (queries + 1) * self.dim
        relay *= (config.cycles - 1) * config.radial
        return 2 * (config.cycles * (maps * square + 2 * queries * keys * self.dim) + relay)


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
