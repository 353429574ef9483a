"""Random, window and global blocks (Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.config import NonNegative, Positive
from lit_transformers.executors import Inputs, attend, attend_flops
from lit_transformers.mixer import Context, Mode, Shape
from lit_transformers.mixers.qkv import Heard, QKVMixer, ScoresConfig
from lit_transformers.patterns import BLOCK, Graph
from lit_transformers.space import Choice, Interval, Space


class BigBirdConfig(ScoresConfig, kind="big_bird"):
    """block: positions of a block; random: blocks that each block sees by chance; window: blocks around it, itself in
    the middle (an odd number); either may be 0.

    global_blocks: which blocks see and are seen from everywhere. "ends": the first and the last, as the paper's ITC;
    "first": the first alone, which with ``extra_tokens`` of the encoder is its ETC; "none".
    seed: of the graph, which is the same in every pass; layers differ. graph_per_head: whether heads differ too.
    """

    space: ClassVar[Space] = {"block": Choice((16, 32, 64)), "random": Interval(1, 4)}

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
        self.drawing = Drawing(
            block=config.block,
            random=config.random,
            side=config.window // 2 if config.window else None,
            global_blocks=config.global_blocks,
            seed=config.seed * 1_000_003 + shape.layer,
            graphs=shape.heads if config.graph_per_head else 1,
        )

    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        length = inputs.k.size(-2)
        if inputs.seen is None:
            graph = of_full_rows(self.drawing, length, inputs.k.device)
        else:
            graph = self.drawing.graph(lengths(inputs.seen), length)
        return attend(graph, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped), {}

    def flops(self, queries: int, remembered: int, causal: bool = False) -> int:
        graph = of_full_rows(self.drawing, queries, torch.device("cpu"))
        products = attend_flops(graph, queries, queries, self.width, causal=False, encoding=self.relative)
        return self.projection_flops(queries, queries) + products


class Drawing(NamedTuple):
    """What a graph is drawn by: side, how many blocks are seen on each side, None for not even the own; graphs: 1, or
    one for each head. The rest as in the config."""

    block: int
    random: int
    side: int | None
    global_blocks: Literal["none", "first", "ends"]
    seed: int
    graphs: int

    def graph(self, length: Tensor, padded: int) -> Graph:
        """For rows (b,) of these lengths, all ``padded`` to one."""
        return Graph(self.edges(length, padded), self.block)

    def edges(self, length: Tensor, padded: int) -> Bool[Tensor, "b h n n"]:
        """Which blocks see which; b and h are 1 where all are alike."""
        count = -(-length // self.block)
        blocks = torch.arange(-(-padded // self.block), device=length.device)
        i, j, last = blocks[:, None], blocks[None, :], count[:, None, None] - 1
        real = j <= last
        edges = torch.zeros_like(real & (i >= 0)) if self.side is None else ((i - j).abs() <= self.side) & real
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


@lru_cache(maxsize=64)
def of_full_rows(drawing: Drawing, length: int, device: torch.device) -> Graph:
    """The graph of rows without padding, with its plan: the same in every pass."""
    with torch.inference_mode(False):  # else a first pass that only measures would leave nothing to train on
        graph = drawing.graph(torch.tensor([length], device=device), length)
        return graph._replace(planned=tuple(graph.blocks(length, length, 0, BLOCK)))


def lengths(seen: Bool[Tensor, "b s"]) -> Int[Tensor, " b"]:
    """Where the last real token of each row ends."""
    return (seen * torch.arange(1, seen.size(1) + 1, device=seen.device)).amax(dim=1)


def shuffled(blocks: int, graphs: int, seed: int, device: torch.device) -> Tensor:
    """A number from 0 to 2^31 - 1 for every graph and pair of blocks, (1, h, n, n), the same however many there are."""
    h, i, j = torch.meshgrid(*(torch.arange(n, device=device) for n in (graphs, blocks, blocks)), indexing="ij")
    mixed = (h * 8_191 + i) * 131_071 + j + seed * 2_654_435
    for factor in (0x45D9F3B, 0x119DE1F3):  # a multiplicative hash: neighbours in, no pattern out
        mixed = ((mixed ^ (mixed >> 16)) * factor) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 16))[None]
