"""Random, window and global blocks (Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lit_transformers.config import NonNegative, Positive
from lit_transformers.executors import Inputs, attend, attend_flops
from lit_transformers.mixer import Context, Mode, Shape
from lit_transformers.mixers.qkv import Heard, QKVMixer, ScoresConfig
from lit_transformers.patterns import Graph


class BigBirdConfig(ScoresConfig, kind="big_bird"):
    """block: positions of a block; random: blocks that each block sees by chance; window: blocks around it, itself in
    the middle (an odd number); either may be 0.

    global_blocks: which blocks see and are seen from everywhere. "ends": the first and the last, as the paper's ITC;
    "first": the first alone, which with ``extra_tokens`` of the encoder is its ETC; "none".
    seed: of the graph, which is the same in every pass; layers differ. graph_per_head: whether heads differ too.
    """

    block: Positive = 64
    random: NonNegative = 3
    window: NonNegative = 3
    global_blocks: Literal["none", "first", "ends"] = "ends"
    seed: NonNegative = 0
    graph_per_head: bool = True

    def conflicts(self) -> Iterator[str]:
        if self.window and self.window % 2 == 0:
            yield f"a window has a block in its middle, so it is odd, not {self.window}"
        if not (self.random or self.window):
            yield "with neither random nor window blocks most queries see nothing of their surroundings"

    def build(self, shape: Shape) -> BigBird:
        return BigBird(self, shape)


class BigBird(QKVMixer):
    """softmax over three kinds of blocks, none of them counted twice. Random ones avoid the others.

    The graph of a row depends on its own length alone, so what is padded to it changes nothing: of all its blocks a
    block sees those that come first in an order which is fixed for every pair of blocks. (The published code draws
    from the first 1,024 tokens only at some lengths, and transformers' uses the first block alone when it evaluates.)
    """

    bidirectional = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "causal": "random and global blocks lie before and after a query, and the paper defines it for encoders",
        "cross": "blocks cut one sequence; across two they mean nothing",
    }

    def __init__(self, config: BigBirdConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.block, self.random, self.side = config.block, config.random, config.window // 2
        self.has_window, self.global_blocks = config.window > 0, config.global_blocks
        self.seed = config.seed * 1_000_003 + shape.layer
        self.graphs = shape.heads if config.graph_per_head else 1

    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        graph = Graph(self.edges(lengths(inputs), inputs.k.size(-2)), self.block)
        return attend(graph, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped), {}

    def edges(self, length: Tensor, padded: int) -> Bool[Tensor, "b h n n"]:
        """Which blocks see which, for rows (b,) of these lengths, all ``padded`` to one; b and h are 1 where all are
        alike."""
        count = -(-length // self.block)
        blocks = torch.arange(-(-padded // self.block), device=length.device)
        i, j, last = blocks[:, None], blocks[None, :], count[:, None, None] - 1
        real = j <= last
        edges = ((i - j).abs() <= self.side) & real if self.has_window else torch.zeros_like(real & (i >= 0))
        if self.global_blocks != "none":
            edges = edges | (((i == 0) | (j == 0)) & real)
        if self.global_blocks == "ends":
            edges = edges | (((i == last) | (j == last)) & real)
        edges = edges[:, None]
        if not self.random:
            return edges
        order = shuffled(len(blocks), self.graphs, self.seed, length.device).masked_fill(edges | ~real[:, None], -1)
        most = min(self.random, len(blocks))
        best, chosen = order.topk(most, dim=-1)
        return edges.expand_as(order).scatter(-1, chosen, (best >= 0) | edges.expand_as(order).gather(-1, chosen))

    def flops(self, queries: int, remembered: int, causal: bool = False) -> int:
        graph = Graph(self.edges(torch.tensor([queries]), queries), self.block)
        products = attend_flops(graph, queries, queries, self.width, causal=False, encoding=self.relative)
        return self.projection_flops(queries, queries) + products


def lengths(inputs: Inputs) -> Tensor:
    """Where the last real token of each row ends; (1,) where all rows are full."""
    if inputs.seen is None:
        return torch.tensor([inputs.k.size(-2)], device=inputs.k.device)
    return (inputs.seen * torch.arange(1, inputs.k.size(-2) + 1, device=inputs.k.device)).amax(dim=1)


def shuffled(blocks: int, graphs: int, seed: int, device: torch.device) -> Tensor:
    """A number from 0 to 2^31 - 1 for every graph and pair of blocks, (1, h, n, n), the same however many there are."""
    h, i, j = torch.meshgrid(*(torch.arange(n, device=device) for n in (graphs, blocks, blocks)), indexing="ij")
    mixed = (h * 8_191 + i) * 131_071 + j + seed * 2_654_435
    for factor in (0x45D9F3B, 0x119DE1F3):  # a multiplicative hash: neighbours in, no pattern out
        mixed = ((mixed ^ (mixed >> 16)) * factor) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 16))[None]
