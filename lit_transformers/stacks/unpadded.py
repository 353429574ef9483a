"""Passes rows through a stack without their padding."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.encodings.positions import PositionsConfig
from lit_transformers.mixer import Context, MixerConfig, Mode
from lit_transformers.named_tuples import with_fields
from lit_transformers.row_groups import Unpadding
from lit_transformers.stacks.stack import Stack, StackOutput

__all__ = ["pass_without_padding", "require_unpadded"]


def require_unpadded(mixer: MixerConfig, positions: PositionsConfig | None, mode: Mode) -> None:
    """Raises ConfigError, with the reason, where a mixer or positions have other outputs for rows without padding."""
    if mode == "permuted":
        reason = "rows are read in an order, which is of padded rows"
    elif mixer.promises().of_pass:
        reason = f"a row has other outputs of {mixer.mixer_name} in each pass"
    elif positions is not None and positions.offset:
        reason = "positions.offset draws a number for each padded row"
    else:
        return
    raise ConfigError(f"{reason}; set it to false", "unpadded")


def pass_without_padding(
    stack: Stack, x: Float[Tensor, "b t d"], ctx: Context, keep_hidden: bool = False
) -> StackOutput:
    """Passes the real tokens of rows (b, t, d) through a stack, and returns outputs (b, t, d) with zeros at padding.
    Only sublayers that mix tokens divide them into rows. Padding stands at the end of each row."""
    unpadding = None if ctx.padding_mask is None else Unpadding.of(ctx.padding_mask)
    if unpadding is None:
        padded: StackOutput = stack(x, ctx, keep_hidden=keep_hidden)
        return padded
    parts = (ctx.positions, ctx.marked, ctx.segments)
    positions, marked, segments = (None if part is None else unpadding.taken(part) for part in parts)
    assert positions is not None
    ctx = with_fields(
        ctx, positions=positions, padding_mask=None, marked=marked, segments=segments, groups=unpadding.groups
    )
    output: StackOutput = stack(unpadding.taken(x), ctx, keep_hidden=keep_hidden)
    hidden = tuple(unpadding.restored(layer) for layer in output.hidden)
    entered = None if output.entered is None else unpadding.restored(output.entered)
    return StackOutput(unpadding.restored(output.y), (), output.aux, hidden, entered)
