"""Random, window and global blocks (Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Bool
from torch import Tensor

from lit_transformers.attention.executors import Inputs, attend, attend_flops
from lit_transformers.attention.patterns import BLOCK, Graph
from lit_transformers.batch import row_lengths
from lit_transformers.config import Length, NonNegative, Positive, RandomSeed
from lit_transformers.host import HOST, sent
from lit_transformers.mixer import Context, Promises, Shape
from lit_transformers.mixers.qkv import HeadsOutput, QKVMixer, ScoresConfig, SegmentInputs
from lit_transformers.named_tuples import with_fields
from lit_transformers.space import Choice, Interval, Space


@final
class BigBirdConfig(ScoresConfig, kind="big_bird"):
    """block: positions per block; random: randomly drawn blocks that each block sees; window: blocks around a block
    that it sees, with itself in the middle (an odd number); either may be 0.

    global_blocks: which blocks see all blocks and are seen by all. "ends": the first and the last, as in the paper's
    ITC; "first": the first alone, which with ``extra_tokens`` of the encoder is its ETC; "none".
    seed: seed of the graph, which is the same in every pass; layers differ. graph_per_head: whether heads differ too.
    """

    space: ClassVar[Space] = {"block": Choice((16, 32, 64)), "random": Interval(1, 4)}

    block: Annotated[Positive, Length] = 64
    random: Annotated[NonNegative, Length] = 3
    window: Annotated[NonNegative, Length] = 3
    global_blocks: Literal["none", "first", "ends"] = "ends"
    seed: Annotated[NonNegative, RandomSeed] = 0
    graph_per_head: bool = True

    def conflicts(self) -> Iterator[str]:
        if self.window and self.window % 2 == 0:
            yield f"a window has a block in its middle, so it is odd, not {self.window}"
        if not (self.random or self.window):
            yield "with neither random nor window blocks most queries see nothing of their surroundings"

    def attention_promises(self) -> Promises:
        reason = "random and global blocks lie before and after a query, and the paper defines it for encoders"
        return Promises(
            ("bidirectional",),
            refusals={
                "causal": reason,
                "cross": "blocks cut one sequence; across two they mean nothing",
            },
        )

    def build(self, shape: Shape) -> BigBird:
        return BigBird(self, shape)


@final
class BigBird(QKVMixer):
    """Softmax attention over three kinds of blocks, none of them counted twice: random blocks are none of the others.

    The graph of a row depends on its own length alone, so padding changes nothing: a block draws as its random blocks
    those of the row that come first in an order which is fixed for every pair of blocks. (The published code draws
    from the first 1,024 tokens only at some lengths, and transformers' uses the first block alone when it evaluates.)
    """

    def __init__(self, config: BigBirdConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.drawing = GraphSampler(
            block=config.block,
            random=config.random,
            side=config.window // 2 if config.window else None,
            global_blocks=config.global_blocks,
            seed=config.seed * 1_000_003 + shape.layer,
            graphs=shape.heads if config.graph_per_head else 1,
        )
        if config.graph_per_head and config.random:
            self.heads_differ = "each head has another random graph (mixer.graph_per_head)"

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        length = inputs.k.size(-2)
        if inputs.key_mask is None:
            graph = of_full_rows(self.drawing, length, inputs.k.device)
        else:
            graph = self.drawing.graph(row_lengths(inputs.key_mask), length)
        return HeadsOutput(attend(graph, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped))

    def flops(self, queries: int, remembered: int, causal: bool = False) -> int:
        graph = of_full_rows(self.drawing, queries, torch.device("cpu"))
        products = attend_flops(graph, queries, queries, self.width, causal=False, encoding=self.relative)
        return self.projection_flops(queries, queries) + products


class GraphSampler(NamedTuple):
    """Draws graphs of blocks. side: how many blocks are seen on each side, or None if a block does not see even itself;
    graphs: 1, or one for each head. The other fields are as in the config."""

    block: int
    random: int
    side: int | None
    global_blocks: Literal["none", "first", "ends"]
    seed: int
    graphs: int

    def graph(self, length: Tensor, padded: int) -> Graph:
        """Returns the graph for rows of the given lengths (b,), all padded to ``padded`` positions."""
        return Graph(self.edges(length, padded), self.block)

    def edges(self, length: Tensor, padded: int) -> Bool[Tensor, "b h n n"]:
        """Returns which blocks see which; b and h are 1 where all rows or heads have the same graph."""
        block_counts = -(-length // self.block)
        blocks = torch.arange(-(-padded // self.block), device=length.device)
        i, j, last = blocks[:, None], blocks[None, :], block_counts[:, None, None] - 1
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
        random_count = min(self.random, len(blocks))
        best, indices = order.topk(random_count, dim=-1)
        return edges.expand_as(order).scatter(-1, indices, (best >= 0) | edges.expand_as(order).gather(-1, indices))


@lru_cache(maxsize=64)
def of_full_rows(sampler: GraphSampler, length: int, device: torch.device) -> Graph:
    """Returns the graph of rows without padding, with its block plan; it is the same in every pass and cached."""
    with torch.inference_mode(
        False
    ):  # otherwise a first pass in inference mode would cache tensors that cannot be trained with
        graph = sampler.graph(torch.tensor([length], device=HOST), length)
        blocks = graph.blocks(length, length, 0, BLOCK)
        planned = tuple(
            with_fields(block, further=None if block.further is None else sent(block.further, device))
            for block in blocks
        )
        return replace(graph, edges=sent(graph.edges, device), planned=planned)


def shuffled(blocks: int, graphs: int, seed: int, device: torch.device) -> Tensor:
    """Hashes every graph and pair of blocks to a number from 0 to 2^31 - 1, (1, h, n, n), which does not depend on the
    number of graphs or blocks."""
    h, i, j = torch.meshgrid(*(torch.arange(n, device=device) for n in (graphs, blocks, blocks)), indexing="ij")
    hashed = (h * 8_191 + i) * 131_071 + j + seed * 2_654_435
    for factor in (0x45D9F3B, 0x119DE1F3):  # a multiplicative hash: neighbouring inputs give unrelated outputs
        hashed = ((hashed ^ (hashed >> 16)) * factor) & 0x7FFFFFFF
    return (hashed ^ (hashed >> 16))[None]
