"""Long-short range attention (Wu et al. 2020, Lite Transformer, arXiv:2004.11886)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lit_transformers.config import ConfigError, Heads, Positive, Reach, field_types
from lit_transformers.mixer import Context, Mixer, MixerOutput, Promises, Shape
from lit_transformers.mixers.attention import Attention, AttentionConfig
from lit_transformers.mixers.convolution import Convolution, ConvolutionConfig
from lit_transformers.mixers.qkv import QKVConfig
from lit_transformers.mixers.window import Window, WindowConfig
from lit_transformers.named_tuples import with_fields

Share = Annotated[float, Field(gt=0, lt=1)]


@final
class LSRAConfig(QKVConfig, kind="lsra"):
    """branches: the branches of a layer; fraction: the share of channels that goes to attention if there are both (None
    for half); attention_heads: heads of that branch (None for the model's); window: keys that its queries see on each
    side (only before it if causal), besides their own, so that a layer costs as much for each token of a long row as
    of a short one; None, as in the paper, for all; convolution: the other branch, its heads included. The other fields
    configure the attention branch. The paper's flat feed-forward is ``feedforward.width`` set to dim."""

    branches: Literal["both", "attention", "convolution"] = "both"
    fraction: Share | None = None
    attention_heads: Annotated[Positive | None, Heads] = None
    window: Annotated[Positive | None, Reach] = None
    convolution: ConvolutionConfig = ConvolutionConfig()

    def conflicts(self) -> Iterator[str]:
        if self.branches != "both" and self.fraction is not None:
            yield f"branches: {self.branches} has all the channels; drop fraction, or set branches: both"
        if self.branches == "attention" and self.convolution != ConvolutionConfig():
            yield "branches: attention has no convolution to configure; set branches: both"
        if self.branches == "convolution":
            default = AttentionConfig()
            for name in field_types(QKVConfig):
                if getattr(self, name) != getattr(default, name):
                    yield f"branches: convolution has no attention, so {name} does nothing; drop it"
            for name in ("attention_heads", "window"):
                if getattr(self, name) is not None:
                    yield f"branches: convolution has no attention, so {name} does nothing; drop it"

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal", "bidirectional"),
            streams=True,
            refusals={
                "cross": "its convolution reads neighbours in its own sequence; the paper's cross mixer is attention"
            },
        )

    def build(self, shape: Shape) -> LSRA:
        return LSRA(self, shape)


@final
class LSRA(Mixer):
    """Section 4, figure 3: some channels attend to everything, the others read their neighbours, side by side.

    Channels are split before any projection, so that each branch has square maps as wide as itself, and concatenated
    after; only the feed-forward mixes them. Channels are split, not heads. The text describes depthwise convolutions;
    the released models use dynamic ones: ``convolution.dynamic``.
    """

    def __init__(self, config: LSRAConfig, shape: Shape) -> None:
        super().__init__()
        self.split = attending(config, shape.dim)
        heads = config.attention_heads or shape.heads
        fields = {name: getattr(config, name) for name in field_types(QKVConfig)}
        attention = AttentionConfig(**fields) if config.window is None else WindowConfig(window=config.window, **fields)
        self.attention = attention.build(with_fields(shape, dim=self.split, heads=heads)) if self.split else None
        convolution_shape = with_fields(shape, dim=shape.dim - self.split)
        try:
            self.convolution = config.convolution.build(convolution_shape) if convolution_shape.dim else None
        except ConfigError as error:
            raise ConfigError(error.reason, error.path.replace("mixer.", "mixer.convolution.")) from None

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        far, near = x.split([self.split, x.size(-1) - self.split], dim=-1)
        states = state or {}
        outputs, new_states = [], {}
        for name, branch, channels in (("attention", self.attention, far), ("convolution", self.convolution, near)):
            if branch is not None:
                output: MixerOutput = branch(channels, ctx, states.get(name))
                outputs.append(output.y)
                new_states[name] = output.state
        return MixerOutput(torch.cat(outputs, dim=-1), new_states)

    def decoding_state(self, length: int) -> int:
        return sum(branch.decoding_state(length) for branch in self._branches())

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return sum(branch.flops(queries, remembered, causal) for branch in self._branches())

    def _branches(self) -> list[Attention | Window | Convolution]:
        return [branch for branch in (self.attention, self.convolution) if branch is not None]


def attending(config: LSRAConfig, dim: int) -> int:
    """Returns the number of channels that go to attention. Raises ConfigError where a branch gets none."""
    if config.branches != "both":
        return dim if config.branches == "attention" else 0
    channels = round(dim * (0.5 if config.fraction is None else config.fraction))
    if not 0 < channels < dim:
        raise ConfigError(f"{config.fraction} of {dim} channels leaves a branch none; move it to 0.5", "mixer.fraction")
    return channels
